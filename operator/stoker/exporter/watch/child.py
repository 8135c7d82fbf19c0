"""A child process with its output as lines. Owns the process and our end of its pipe. Called by `watcher`."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

MAX_LINE_BYTES = 1 << 22
"""More than any frame has."""
_READ_BYTES = 1 << 16
_PASSED_ON = frozenset(
    {
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    }
)


def child_environment(mine: Mapping[str, str]) -> dict[str, str]:
    """What the child needs of our environment, by name: tokens and keys stay here."""
    # One arena: a process of two threads that allocates little.
    return {name: value for name, value in mine.items() if name in _PASSED_ON} | {"MALLOC_ARENA_MAX": "1"}


class Garbled(Exception):
    """The child writes what is no line."""


class Child:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], user: int | None) -> None:
        """user: Run as this uid and gid, without further groups. Raises: OSError, subprocess.SubprocessError."""
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C on a terminal is the parent's business
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self, within_s: float, wake: int) -> list[bytes] | None:
        """Whole lines that have come; empty: none within that time, or `wake` can be read. None: it closed its output.

        Raises: Garbled.
        """
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(wake, select.POLLIN)
        if self._pipe not in (descriptor for descriptor, _ in poll.poll(max(0.0, within_s) * 1000)):
            return []
        data = os.read(self._pipe, _READ_BYTES)
        if not data:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise Garbled(f"{len(self._rest)} bytes without an end of line")
        return whole

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def ended(self, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def crashed(self) -> bool:
        """It ended by a signal."""
        return (self._process.returncode or 0) < 0

    def close(self) -> None:
        if self._process.stdout:
            self._process.stdout.close()
