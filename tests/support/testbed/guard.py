"""Stops a bed whose owner died: a process that waits for its standard input to end, then stops what is left.

The owner keeps the other end of the pipe. When it closes the bed itself it says so first; when it is killed, the pipe
ends without that word. Started by what opens a bed for its own life time (the fixtures), not by `make cluster`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_WATCH = """
import subprocess, sys
if sys.stdin.buffer.read() != b"closed":
    subprocess.run([sys.executable, "-m", "tests.support.testbed", "down", sys.argv[1]], cwd=sys.argv[2], timeout=120,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


class Guard:
    """Watches over the bed in `folder` from now on."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WATCH, str(folder), str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """The owner has closed the bed: nothing is left to do."""
        self._process.communicate(b"closed", timeout=10)
