"""One program of the test bed as a process that can be started, stopped, killed, frozen and started again.

Owns the part's pid file, log and recorded command line in the bed's folder, so that another process (the command line,
a guard) can take over. Every process carries the nonce of its bed in its environment, `STOKER_TESTBED_PROCESS`: that is
how leftovers are found and how a reused pid is recognized. A person's shell never carries it. Never decides in which
order parts start: `control_plane` and `nodes` do.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.support.testbed.errors import BedError

T = TypeVar("T")
MARK = "STOKER_TESTBED_PROCESS"
_BED = "testbed"
"""In the bed's folder, holds its nonce."""
_STARTED: list[subprocess.Popen[bytes]] = []
"""Kept: a part of a bed that is left running outlives its object, and a process that is dropped warns."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def until(check: Callable[[], T | None], what: str, timeout_s: float, *, every_s: float = 0.05) -> T:
    """The first true answer of `check`. Raises: BedError naming `what` when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := check():
            return answer
        if time.monotonic() > deadline:
            raise BedError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)


class Part:
    """A program of the bed in `folder`. `prefix` is put before the command (nsenter into a namespace)."""

    def __init__(
        self,
        bed: Path,
        name: str,
        argv: list[str] | None = None,
        *,
        prefix: list[str] | None = None,
        folder: Path | None = None,
        path: str = SYSTEM_PATH,
    ) -> None:
        self.name = name
        self.bed = bed
        self.log = (folder or bed) / f"{name}.log"
        self._record = (folder or bed) / f"{name}.part.json"
        self._process: subprocess.Popen[bytes] | None = None
        if argv is not None:
            self._record.write_text(json.dumps({"argv": [*(prefix or []), *argv], "path": path, "pid": 0}))

    @property
    def pid(self) -> int:
        """The live process's pid, 0 where there is none."""
        if self._process is not None:
            self._process.poll()  # reaps it
        try:
            pid = int(json.loads(self._record.read_text())["pid"])
        except FileNotFoundError:
            return 0
        return pid if pid and is_marked(pid, self.bed) else 0

    def start(self) -> None:
        """Starts it with the command line recorded. Its output is appended to the log. Raises: BedError if it runs."""
        if self.pid:
            raise BedError(f"{self.name} runs already (pid {self.pid})")
        record = json.loads(self._record.read_text())
        # Nothing of the caller's environment: a proxy's address there would send the cluster's own traffic astray.
        env = {MARK: _nonce(self.bed), "PATH": record["path"], "HOME": str(self.bed), "LANG": "C.UTF-8"}
        env["GOGC"] = "400"  # a seventh of a control plane's CPU is collecting garbage, for 130 MB
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                record["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )
        _STARTED.append(self._process)
        self._record.write_text(json.dumps({**record, "pid": self._process.pid}))

    def stop(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, and SIGKILL where that was not enough in time. Returns when the process is gone."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(BedError):
            self._wait_gone(timeout_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL: the crash. Returns when the process is gone."""
        self._signal(signal.SIGKILL)
        self._wait_gone(10)
        self.reap()

    def freeze(self) -> None:
        """SIGSTOP: it holds its sockets and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def reap(self) -> None:
        """Takes the exit status of a part that was killed from elsewhere."""
        if self._process is not None:
            self._process.wait(timeout=10)

    def send(self, number: signal.Signals) -> None:
        self._signal(number)

    def until(self, check: Callable[[], T | None], what: str, timeout_s: float) -> T:
        """Waits for `check` while it lives. Raises: BedError with the end of its log where it ends or time is over."""

        def alive_or_answer() -> T | None:
            answer = check()
            if not answer and not self.pid:
                raise BedError(f"{self.name} ended while waiting for {what}")
            return answer

        try:
            return until(alive_or_answer, what, timeout_s)
        except BedError as error:
            raise BedError(f"{error}\n--- end of {self.log}\n{self.tail()}") from None

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"

    def _signal(self, number: signal.Signals) -> None:
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait_gone(self, timeout_s: float) -> None:
        until(lambda: not self.pid, f"end of {self.name}", timeout_s, every_s=0.02)


def make_bed(folder: Path) -> None:
    """Makes the folder of a bed, for its owner only. Raises: BedError where it holds something else."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_bed(folder) and any(folder.iterdir()):
        raise BedError(f"{folder} is not empty and not a test bed's: name another folder")
    if not _nonce(folder):
        (folder / _BED).write_text(secrets.token_hex(16))


def parts_in(bed: Path, folder: Path) -> list[Part]:
    """The parts that were started with their logs in `folder`."""
    return [Part(bed, path.name.removesuffix(".part.json"), folder=folder) for path in folder.glob("*.part.json")]


def is_bed(folder: Path) -> bool:
    """Whether `make_bed` made it: only such a folder may be removed."""
    return (folder / _BED).exists()


def is_marked(pid: int, bed: Path) -> bool:
    """Whether this live process belongs to the bed. Zombies have no environment and count as gone."""
    process, nonce = Path(f"/proc/{pid}"), _nonce(bed)
    if not nonce:
        return False
    try:
        for _ in range(100):
            if environment := (process / "environ").read_bytes():
                return f"{MARK}={nonce}\0".encode() in environment + b"\0"
            (process / "exe").readlink()  # fails for zombies and kernel threads
            time.sleep(0.001)  # in the middle of an exec the environment is empty for a moment
    except OSError:
        pass
    return False


def _nonce(bed: Path) -> str:
    """Empty where there is no bed any more."""
    with contextlib.suppress(FileNotFoundError):
        return (bed / _BED).read_text()
    return ""


def marked(bed: Path) -> Iterator[int]:
    """The pids of all live processes of the bed, also those a killed run left behind."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and is_marked(int(entry.name), bed):
            yield int(entry.name)


def kill_all(bed: Path, *, argument: str = "") -> int:
    """SIGKILL for every process of the bed (with this text among its arguments) until none is left; returns how many.

    Raises: BedError where one does not die within ten seconds.
    """
    seen: set[int] = set()

    def none_left() -> bool:
        pids = [pid for pid in marked(bed) if argument in _arguments(pid)]
        seen.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(none_left, f"end of the processes of {bed}", 10)
    return len(seen)


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
