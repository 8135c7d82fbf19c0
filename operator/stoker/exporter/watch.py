"""The parent's side of the NVML child (`stoker.nvml`): starts it, reads it, ends and replaces it. Never imports NVML.

`ReaderWatch` runs in one thread of its own, which also spawns the child: the child ends with that thread (PDEATHSIG). A
child that hangs in the driver may survive SIGKILL; it is left, shown (`stuck`), and no other is started beside it.
Called by the exporter's main.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from stoker.nvml.frames import Frame, Message, parse

from .clock import boottime_s

log = logging.getLogger(__name__)

START_WITHIN_S = 60.0
"""For a child's first line: without persistence mode the driver takes seconds for each GPU to begin."""
KILLED_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.5
MAX_LINE_BYTES = 1 << 22
"""More than any frame has."""
_READ_BYTES = 1 << 16
_PASSED_ON = frozenset(
    {
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    }
)


class ReaderWatch:
    """`start`, then `on_message` is called in the watch's thread with each thing the child says, until `stop`.

    Its figures may be read from any thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_message: Callable[[Message], None],
        *,
        stuck_after_s: float = 10.0,
        start_within_s: float = START_WITHIN_S,
        first_wait_s: float = 1.0,
        max_wait_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        """stuck_after_s: a child silent for so long is killed. first_wait_s … max_wait_s: before a child is replaced,
        doubling while children fail. user: uid and gid of the child, where we may choose. clock: of
        `last_message_mono_s`.
        """
        self._command, self._on_message = list(command), on_message
        self._stuck_after_s, self._start_within_s = stuck_after_s, max(start_within_s, stuck_after_s)
        self._first_wait_s, self._max_wait_s = first_wait_s, max_wait_s
        self._environment = child_environment(os.environ) if environment is None else dict(environment)
        self._user, self._clock = user, clock
        self.restarts: dict[str, int] = {"exited": 0, "crashed": 0, "stuck": 0, "garbled": 0, "unstartable": 0}
        """Children started after the first, by why the one before is gone."""
        self.stuck = False
        """A child was killed and does not die."""
        self.last_message_mono_s: float | None = None
        self.pid: int | None = None
        """Of the child that runs."""
        self._wait_s = first_wait_s
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nvml-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float = 1.0) -> bool:
        """Kill the child; True if it is gone. Never waits longer: the kernel ends what is left with this process."""
        self._stop.set()
        if not self._closed:
            os.write(self._wake_write, b".")
        if self._thread.ident is not None:
            self._thread.join(within_s)
        if not self._thread.is_alive() and not self._closed:
            self._closed = True
            os.close(self._wake_read)
            os.close(self._wake_write)
        return self.pid is None and not self.stuck

    def _run(self) -> None:
        reason = ""
        while not self._stop.is_set():
            if reason:
                self.restarts[reason] = self.restarts.get(reason, 0) + 1
            reason = self._run_one()
            if not self._stop.is_set():
                log.warning("NVML child %s; the next in %.1f s", reason, self._wait_s)
            self._stop.wait(self._wait_s)
            self._wait_s = min(self._wait_s * 2, self._max_wait_s)

    def _run_one(self) -> str:
        """A child's whole life. Returns why it ended."""
        try:
            child = Child(self._command, self._environment, self._user)
        except (OSError, subprocess.SubprocessError) as error:
            log.error("NVML child can't be started: %s", error)
            return "unstartable"
        self.pid = child.pid
        try:
            reason = self._hear(child)
        except Garbled as error:
            log.error("NVML child says what we don't understand: %s", error)
            reason = "garbled"
        child.kill()
        if not child.ended(KILLED_WITHIN_S):
            self._wait_for(child)
        child.close()
        self.pid = None
        if reason:
            return reason
        return "crashed" if child.crashed else "exited"

    def _hear(self, child: Child) -> str:
        """Until it is silent for too long (`stuck`), closes its output or is to be stopped. Raises: Garbled."""
        heard_s, allowed_s = time.monotonic(), self._start_within_s
        while not self._stop.is_set():
            left_s = heard_s + allowed_s - time.monotonic()
            if left_s <= 0:
                return "stuck"
            lines = child.lines(left_s, self._wake_read)
            if lines is None:
                # It is about to end by itself: its signal or code is the reason.
                child.ended(KILLED_WITHIN_S)
                return ""
            for line in lines:
                heard_s, allowed_s = time.monotonic(), self._stuck_after_s
                self._hand_on(line)
        return ""

    def _hand_on(self, line: bytes) -> None:
        try:
            message = parse(line)
        except ValueError as error:
            raise Garbled(str(error)) from None
        self.last_message_mono_s = self._clock()
        if isinstance(message, Frame) and message.number > 0:
            self._wait_s = self._first_wait_s  # it works
        try:
            self._on_message(message)
        except Exception:  # the loop's edge: a listener's fault must not end the watch
            log.exception("what the NVML child message could not be taken in")

    def _wait_for(self, child: Child) -> None:
        """A killed child is still there: it hangs in the driver. No other is started beside it."""
        self.stuck = True
        log.error("NVML child %d hangs in the driver and can't be killed", child.pid)
        while not child.ended(0):
            if self._stop.wait(_LOOK_EVERY_S):
                return
        self.stuck = False


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
