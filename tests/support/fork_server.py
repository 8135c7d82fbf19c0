"""A process that has imported what takes long and forks programs from there: torch takes four CPU-seconds, and a test
of the trainer starts up to nine ranks.

A program is what `python -c` would run but for those imports: its environment is set before it begins. It becomes a
child of the test process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36


class Forked:
    """A forked program: as much of subprocess.Popen as these tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked program", timeout)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self.returncode


class ForkServer:
    def __init__(self, *imports: str) -> None:
        """`imports`: the modules that every program has imported already."""
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            serves = "from tests.support.fork_server import serve; serve()"
            command = [sys.executable, "-c", serves, str(other.fileno()), *imports]
            env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[other.fileno()])

    def fork(self, env: Mapping[str, str], program: str, stdout: int, stderr: int) -> Forked:
        # The program's parent has ended: the nearest subreaper above becomes its parent.
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        assert prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
        try:
            socket.send_fds(self._socket, [json.dumps([dict(env), program]).encode()], [stdout, stderr])
            return Forked(int(self._socket.recv(16)))
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


def serve() -> NoReturn:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C of the tests: they close the socket
    while True:
        text, outputs, *_ = socket.recv_fds(control, 1 << 18, 2)
        if not text:
            os._exit(0)  # tearing down torch takes seconds
        read_end, write_end = os.pipe()
        if (between := os.fork()) == 0:
            if (forked := os.fork()) == 0:
                _become(*json.loads(text), *outputs)
            os.write(write_end, str(forked).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(read_end, 16))
        for fd in (read_end, write_end, *outputs):
            os.close(fd)


def _become(env: dict[str, str], program: str, stdout: int, stderr: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c"]
    code = 1
    try:
        exec(program, {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
