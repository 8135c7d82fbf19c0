"""`python process_tree.py COMMAND…`: runs a command, and ends all that came of it: daemons too, and whatever becomes of
the caller.

Standard input is a pipe that the caller holds: closed (or the caller killed), the command is over. Its exit status is
the command's, or 137. Called by `documented.py`, whose commands start workers that outlive their server by design.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # who loses its parent becomes our child
    news, write_end = os.pipe()
    for end in (news, write_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    first = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False).pid
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([0, news], [], [])
        if 0 in ready:
            break
        os.read(news, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == first:
                    status = os.waitstatus_to_exitcode(ended[1])
    _end_all()
    return 137 if status is None else status if status >= 0 else 128 - status


def _end_all() -> None:
    """Kill our children until there are none: theirs become ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
