"""A real `stoker up` with simulated GPUs, as the soak uses and breaks it: every job is a process.

Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.harness import Server, until
from tools.verify.soak.day import Planned
from tools.verify.soak.meter import folder_mib
from tools.verify.soak.place import Harm, frozen

# attempts that fail, seconds, lines, ledger
SCRIPT = """
echo "$STOKER_ATTEMPT $STOKER_WORKER" >> "$4"
[ "$3" = 0 ] || seq 1 "$3"
sleep "$2"
[ "$STOKER_ATTEMPT" -gt "$1" ] || exit 3
"""
GPUS = 64


class OneMachine:
    most_gpus = 4

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._rng = rng
        self._server = Server(folder / "data", "--virtual-gpus", str(GPUS), "--cpus", "64", "--memory", "64Gi")
        self._ledgers = folder / "ledgers"
        self._ledgers.mkdir(parents=True)
        self.url = self._server.url
        self.pages = ["/metrics"]
        self.token = ""

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
        assert self._server.process is not None
        if self._server.process.poll() is not None:
            return {}
        pid = self._server.process.pid
        found = {"stoker up": pid}
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if b"stoker.exporter" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found["exporter"] = int(child)
        return found

    def sizes(self) -> dict[str, float]:
        data = self._server.data
        found = {"data folder, MiB": folder_mib(data)}
        for name in ("stoker.db", "stoker.db-wal", "usage.db"):
            path = data / name
            found[f"{name}, MiB"] = path.stat().st_size / 2**20 if path.exists() else 0.0
        return found

    def harms(self) -> list[Harm]:
        return [
            Harm("SIGKILL of stoker up", self._kill, kills=True),
            Harm("SIGTERM of stoker up", self._stop, kills=True),
            Harm("stoker up frozen", lambda: self._freeze("stoker up")),
            Harm("exporter frozen", lambda: self._freeze("exporter")),
        ]

    def ran(self) -> Counter[tuple[str, int, int]]:
        found: Counter[tuple[str, int, int]] = Counter()
        for path in self._ledgers.iterdir():
            for line in path.read_text().splitlines():
                attempt, worker = line.split()
                found[path.name, int(attempt), int(worker)] += 1
        return found

    async def left(self) -> list[str]:
        with self._server.client() as client:
            held = [
                f"{node.usage.gpus} GPUs held on {node.metadata.name}" for node in client.nodes() if node.usage.gpus
            ]
        live = [f"process {one.pid} of {one.job}" for one in self._server.workers()]
        data = self._server.data
        folders = [str(path) for name in ("workers", "jobs") for path in (data / name).iterdir()]
        return held + live + folders

    async def close(self) -> None:
        await asyncio.to_thread(self._server.close)

    async def _kill(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._rng.uniform(0, 2))
        await self.start()

    async def _stop(self) -> None:
        await asyncio.to_thread(self._server.stop)
        await self.start()

    async def _freeze(self, name: str) -> None:
        if pid := self.processes().get(name):
            await frozen(pid, self._rng.uniform(1, 6))
