"""A process that has imported torch and forks ranks: the import takes four CPU-seconds, a test starts up to nine ranks.

A rank here is what `python -m stoker_trainer` is but for that import: its environment is set before anything of the
trainer is imported. It becomes a child of the test process. Called by tests/trainer/conftest.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36


class Forked:
    """A forked rank: as much of subprocess.Popen as these tests use."""

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
                raise subprocess.TimeoutExpired("a rank", timeout)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._end)
        return self.returncode


class ForkServer:
    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [
                sys.executable,
                "-c",
                "from tests.trainer.fork_server import serve; serve()",
                str(other.fileno()),
            ]
            env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[other.fileno()])

    def fork(self, env: dict[str, str], script: str, output: int) -> Forked:
        """`script` is Python that runs in the rank before the trainer's main."""
        # The rank's parent has ended: the nearest subreaper above becomes its parent.
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        assert prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
        try:
            socket.send_fds(self._socket, [json.dumps([env, script]).encode()], [output])
            return Forked(int(self._socket.recv(16)))
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


def serve() -> NoReturn:
    import numpy
    import prometheus_client
    import torch.distributed

    assert numpy and prometheus_client and torch.distributed
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C of the tests: they close the socket
    while True:
        text, outputs, *_ = socket.recv_fds(control, 1 << 18, 1)
        if not text:
            os._exit(0)  # tearing down torch takes seconds
        read_end, write_end = os.pipe()
        if (between := os.fork()) == 0:
            if (rank := os.fork()) == 0:
                _become(*json.loads(text), outputs[0])
            os.write(write_end, str(rank).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(read_end, 16))
        for fd in (read_end, write_end, outputs[0]):
            os.close(fd)


def _become(env: dict[str, str], script: str, output: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["stoker_trainer"]
    exec(script, {"__name__": "__main__"})
    from stoker_trainer.__main__ import run

    run()
    os._exit(1)
