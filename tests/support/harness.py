"""Drives a real `stoker up` from outside, for the verify scripts and the end-to-end tests.

Owns starting, killing and restarting the server process, and counting live worker processes by their environments.
Never imports server parts: what it sees is what a user or a process table sees.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stoker.client.client import Client

T = TypeVar("T")
SHOWS_PROGRESS = """
import ctypes, json, os, signal, sys, threading, time
def show(**progress):
    path = os.environ['STOKER_PROGRESS_FILE']
    with open(path + '.new', 'w') as file: json.dump(progress, file)
    os.replace(path + '.new', path)
"""
"""The begin of a user's script that reports its progress as the worker's contract says."""


def free_port() -> int:
    """A port that no one listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(
    check: Callable[[], T | None], what: str = "the condition", timeout_s: float = 180.0, every_s: float = 0.05
) -> T:
    """The first true answer of `check`. Raises: TimeoutError naming `what`; only what hangs comes to that."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)


@dataclass(frozen=True)
class WorkerProcess:
    """One live process of a worker, as its environment names it."""

    pid: int
    pod_uid: str
    job: str
    attempt: int
    worker: int
    gpus: tuple[str, ...]
    rank: int | None


def worker_processes(data: Path) -> list[WorkerProcess]:
    """Every live process (zombies left out) that was started for a worker of this data folder."""
    found = []
    marker = os.fsencode(data)
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb", buffering=0) as file:
                raw = file.read()
            # Tests ask for this many times a second: what is no worker's is let go at once.
            if b"STOKER_POD_UID=" not in raw or marker not in raw or stat_of(int(entry))[0] == "Z":
                continue
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        env = dict(item.partition("=")[::2] for item in raw.decode(errors="replace").split("\0") if "=" in item)
        if "STOKER_POD_UID" not in env or str(data) not in env.get("STOKER_CHECKPOINT_DIR", ""):
            continue
        found.append(
            WorkerProcess(
                pid=int(entry),
                pod_uid=env["STOKER_POD_UID"],
                job=env.get("STOKER_JOB", ""),
                attempt=int(env.get("STOKER_ATTEMPT", "0")),
                worker=int(env.get("STOKER_WORKER", "0")),
                gpus=tuple(filter(None, env.get("STOKER_GPU_UUIDS", "").split(","))),
                rank=int(env["RANK"]) if "RANK" in env else None,
            )
        )
    return found


class Server:
    """A `stoker up` on a data folder of its own; survives being killed: `start` again."""

    def __init__(self, data: Path, *options: str, port: int | None = None, env: dict[str, str] | None = None) -> None:
        self.data = data
        self.port = port or free_port()
        self.options = options
        self.env = env or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.data.parent / f"{self.data.name}.up.log"

    def start(self, *, wait: bool = True, env: dict[str, str] | None = None) -> Server:
        """Start it and wait until it is ready; `ready_s` says how long that took."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "stoker.cli.main", "up", "--data", str(self.data), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_user_env() | self.env | (env or {}),
            )
        if wait:
            until(self._ready, f"`stoker up` ready (see {self.log})", every_s=0.01)
            self.ready_s = time.monotonic() - began
        return self

    def client(self) -> Client:
        return Client(self.url, (self.data / "token").read_text().strip())

    def kill(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        """SIGTERM and wait."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def workers(self) -> list[WorkerProcess]:
        return worker_processes(self.data)

    def exporters(self) -> list[int]:
        """Pids of exporters (not of NVML's child) that keep their state in this data folder."""
        folder, found = os.fsencode(self.data / "exporter"), []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb", buffering=0) as file:
                    args = file.read().split(b"\0")
            except OSError:
                continue
            if b"stoker.exporter" in args and folder in args:
                found.append(int(entry))
        return found

    def close(self) -> None:
        """Stop it, and every worker that is left."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        for worker in self.workers():
            try:
                os.kill(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"`stoker up` ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
        # Asked up to a hundred times: httpx would read the CA bundle each time, 30 ms.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """Seconds that the process has had of a core."""
    return sum(map(int, stat_of(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def _user_env() -> dict[str, str]:
    """Our environment as a user's is: Python keeps the bytecode it has compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def running(data: Path, *options: str, **given: object) -> Iterator[Server]:
    """A started server; nothing of it is left afterwards."""
    server = Server(data, *options, **given)  # type: ignore[arg-type]
    try:
        yield server.start()
    finally:
        server.close()


def machine() -> str:
    """The machine and the versions a figure belongs to, in one line."""
    import platform
    from importlib.metadata import version

    with Path("/proc/cpuinfo").open() as info:
        model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "?")
    packages = ", ".join(f"{name} {version(name)}" for name in ("stoker", "fastapi", "pydantic", "httpx"))
    return f"{os.cpu_count()} x {model}; Python {platform.python_version()}; {packages}"
