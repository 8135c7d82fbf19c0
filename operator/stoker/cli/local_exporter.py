"""The exporter that `stoker up` runs: a process of its own beside the server's.

Owns its command line, its folder (`<data>/exporter/`: ledger and spool, its token, its log) and its life: started when
the server is ready, started again when it ends, ended with the server, also with one that was killed. Never reads a
GPU. Called by `up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stoker.local.agent.metrics import worker_address
from stoker.local.datadir import DataDir, write_private
from stoker.spec.pod import Pod
from stoker.store.clock import Clock
from stoker_api.ports import ScrapeTarget
from stoker_api.scrape_targets import API_JOB

log = logging.getLogger("stoker.up")

_PAUSES_S = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Before it is started again, the first to the fifth time and from then on."""
_HEALTHY_S = 60.0
"""Once it has lived so long, what came before is forgotten."""
_END_S = 10.0
"""For its graceful end: the ledger is written, receipts are sent."""
_LOG_BYTES = 4 << 20
"""When it starts with a longer log than that, the log is put aside as `log.1`."""
# The kernel ends it when this process dies, however it dies. Asked for by the child itself (a preexec function would
# copy this whole process first), which then becomes the exporter.
_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-P", "-m", "stoker.exporter", *sys.argv[2:]])
"""


class LocalExporter:
    """`host`: where it listens. `scrape_token`: the file of the token that a scraper must show. `simulated_gpus`: more
    than 0 are slots, no hardware.
    """

    def __init__(
        self,
        datadir: DataDir,
        clock: Clock,
        *,
        node: str,
        host: str,
        api_url: Callable[[], str],
        api_token: str,
        scrape_token: Path,
        simulated_gpus: int,
    ) -> None:
        self._datadir, self._clock, self._host, self._api_url, self._api_token = (
            datadir,
            clock,
            host,
            api_url,
            api_token,
        )
        self._node, self._scrape_token, self._simulated_gpus = node, scrape_token, simulated_gpus
        self._folder = datadir.path / "exporter"
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int | None:
        """Where it serves /metrics; None: it does not run now."""
        return self._port if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Keeps it running until cancelled; then it is gone. Raises: OSError where its folder can't be made."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_private(self._folder / "api.token", self._api_token.encode() + b"\n")
        await self._end_leftovers()
        ends = 0
        while True:
            began_s = self._clock.monotonic()
            try:
                self._process = await self._start()
                code = await self._process.wait()
                why = f"ended with {code}" if code >= 0 else f"was ended by signal {-code}"
            except asyncio.CancelledError:
                await self._end()
                raise
            except OSError as error:
                why = f"can't be started: {error}"
            if self._clock.monotonic() - began_s >= _HEALTHY_S:
                ends = 0
            pause_s = _PAUSES_S[min(ends, len(_PAUSES_S) - 1)]
            ends += 1
            log.warning("the exporter %s; started again in %g s (%s)", why, pause_s, self._folder / "log")
            await self._clock.sleep(pause_s)

    async def _start(self) -> asyncio.subprocess.Process:
        self._port = _free_port(self._host, self._port)
        with _opened(self._folder / "log") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-c",
                _LAUNCH,
                str(os.getpid()),
                *self._arguments(),
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the server's, which ends it in its own way
            )

    def _arguments(self) -> list[str]:
        given = {
            "--node": self._node,
            "--host": self._host,
            "--port": str(self._port),
            "--state": str(self._folder),
            "--allocation": "workers",
            "--workers": str(self._datadir.workers),
            "--api-url": self._api_url(),
            "--api-token-file": str(self._folder / "api.token"),
            "--auth-token-file": str(self._scrape_token),
        }
        if self._simulated_gpus:
            given["--simulated-gpus"] = str(self._simulated_gpus)
        return [word for pair in given.items() for word in pair]

    async def _end_leftovers(self) -> None:
        """Those of a server that was killed, and that have not ended with it, hold the folder.

        Looked for among all processes: a server can be killed before it could write down what it had just started.
        """
        for number in (signal.SIGTERM, *([signal.SIGKILL] * 5)):
            if not (left := self._leftovers()):
                return
            for pid in left:
                log.warning("the exporter of an earlier server still runs (pid %d): ended", pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            for _ in range(30):
                if not self._leftovers():
                    return
                await self._clock.sleep(0.1)

    def _leftovers(self) -> list[int]:
        """The exporters on our folder. One of another user is left alone."""
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and process.stat().st_uid == os.getuid():
                    arguments = (process / "cmdline").read_bytes().split(b"\0")
                    if b"stoker.exporter" in arguments and os.fsencode(self._folder) in arguments:
                        found.append(int(process.name))
        return found

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """For appending."""
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_name("log.1"))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _free_port(host: str, before: int) -> int:
    """The port it had, so that its target stays the same; else any free one. Raises: OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (before, 0):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                if not port:
                    raise
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("port 0 is bound or raises")


EXPORTER_JOB = "stoker-exporter"
"""Also what the exporter calls itself when it pushes."""
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class LocalScraping:
    def __init__(
        self, datadir: DataDir, *, host: str, port: int, node: str, exporter_port: Callable[[], int | None]
    ) -> None:
        self._datadir, self._node, self._exporter_port = datadir, node, exporter_port
        # Who listens everywhere is found on loopback, where workers' trainers are, too.
        self._host, self._port = _ANYWHERE.get(host, host), port

    def servers(self) -> Sequence[ScrapeTarget]:
        found = [ScrapeTarget(self._at(self._port), {"job": API_JOB})]
        if exporter := self._exporter_port():
            found.append(ScrapeTarget(self._at(exporter), {"job": EXPORTER_JOB, "instance": self._node}))
        return found

    def worker(self, pod: Pod) -> str | None:
        return worker_address(self._datadir, pod)

    def _at(self, port: int) -> str:
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
