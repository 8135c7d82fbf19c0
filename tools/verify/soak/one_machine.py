"""A real `stoker up` with simulated GPUs, as the soak uses and breaks it: every job is a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.harness import Server, until
from tools.verify.soak.meter import folder_mib
from tools.verify.soak.plan import Planned

# attempts that fail, seconds, lines, ledger
SCRIPT = """
echo "$STOKER_ATTEMPT $STOKER_WORKER" >> "$4"
[ "$3" = 0 ] || seq 1 "$3"
sleep "$2"
[ "$STOKER_ATTEMPT" -gt "$1" ] || exit 3
"""


class OneMachine:
    most_gpus = 4
    pages = ("/metrics",)

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._rng = rng
        self._server = Server(folder / "data", "--virtual-gpus", "64", "--cpus", "64", "--memory", "64Gi")
        self._ledgers = folder / "ledgers"
        self._ledgers.mkdir(parents=True)
        self.url, self.token = self._server.url, ""
        self.disturbed: set[str] = set()

    async def start(self) -> None:
        """Not until it is ready: clients repeat their calls, and a busy machine takes its time."""
        await asyncio.to_thread(self._server.start, wait=False)
        token = self._server.data / "token"
        await asyncio.to_thread(until, token.exists, "a token", 120)
        self.token = token.read_text().strip()

    def trainer(self, job: Planned) -> dict[str, Any]:
        arguments = (str(job.fails), f"{job.lasts_s:.2f}", str(job.lines), str(self._ledgers / job.name))
        return {"command": ["/bin/sh", "-c", SCRIPT, "job", *arguments], "workingDir": "/"}

    def processes(self) -> dict[str, int]:
        """Empty while it is being started."""
        process = self._server.process
        if process is None or process.poll() is not None:
            return {}
        found = {"stoker up": process.pid}
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                if b"stoker.exporter" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found["exporter"] = int(child)
        return found

    def sizes(self) -> dict[str, float]:
        data = self._server.data
        files = [data / name for name in ("stoker.db", "stoker.db-wal", "usage.db", "curves.db")]
        found = {f"{path.name}, MiB": path.stat().st_size / 2**20 for path in files if path.exists()}
        return found | {"data folder, MiB": folder_mib(data)}

    async def disturb(self, *, kills: bool) -> str:
        """Break something and wait until it is whole again. Returns: what."""
        if kills:
            how = self._rng.choice((signal.SIGKILL, signal.SIGTERM))
            assert self._server.process is not None
            self._server.process.send_signal(how)
            await asyncio.to_thread(self._server.process.wait, 120)
            await asyncio.sleep(self._rng.uniform(0, 2))
            await self.start()
            return f"{how.name} of stoker up"
        name, pid = self._rng.choice(list(self.processes().items()))
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(1, 6))
        finally:
            os.kill(pid, signal.SIGCONT)
        return f"{name} frozen"

    def ran(self) -> Counter[tuple[str, int, int]]:
        """How often which worker of which attempt of which job was run."""
        found: Counter[tuple[str, int, int]] = Counter()
        for path in self._ledgers.iterdir():
            for line in path.read_text().splitlines():
                attempt, worker = line.split()
                found[path.name, int(attempt), int(worker)] += 1
        return found

    async def left(self) -> list[str]:
        """What of ended jobs is still there."""
        live = [f"process {one.pid} of {one.job}" for one in self._server.workers()]
        return live + [str(path) for name in ("workers", "jobs") for path in (self._server.data / name).iterdir()]

    async def close(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.close)
