"""One poll after another: reads every GPU, notices what is lost, back or changed, and begins new NVML sessions.

Decides by the time it is given. Writes nothing itself: a poll's outcome is returned, events go to `say`. Called by
`__main__`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .calls import CallErrors, DriverLost, GpuLost
from .frames import Frame, GpuEvent, GpuReading, Trouble
from .session import NvmlSession

FIRST_WAIT_S, MAX_WAIT_S = 1.0, 30.0
"""Between two tries of a new session."""
STOP_WITHIN_S = 10.0
"""A thread that waits for events longer than that hangs in the driver."""


class BeginAnew(Exception):
    """Only a new process helps: the library in this one does not fit the driver any more, or a thread hangs in it."""


@dataclass(frozen=True)
class Choice:
    """What to read, and what to expect."""

    collectors: frozenset[str]
    expected: int | None = None
    """GPUs that should be here; None: not known."""
    all_pids: bool = True
    """Whether all processes of this machine can be seen from this pid namespace."""


@dataclass(slots=True)
class _Known:
    """What was last said of a GPU."""

    index: int
    lost: str = ""
    info: dict[str, str] = field(default_factory=dict)
    recovery_action: int = 0
    mig: tuple[str, ...] | None = None


class Poller:
    def __init__(self, choice: Choice, say: Callable[[GpuEvent], None], clock: Callable[[], float]) -> None:
        """clock: monotonic seconds, to know how long a poll took."""
        self._choice, self._say, self._clock = choice, say, clock
        self._refused = CallErrors()
        self._session: NvmlSession | None = None
        self._trouble = ""
        self._known: dict[str, _Known] = {}
        self._lost_here: set[str] = set()
        """Uuids of GPUs that were lost in this session: they are not asked again in it."""
        self._wait_s = FIRST_WAIT_S
        self._renew_at_s = 0.0
        """When to begin a new session, on the clock; inf: no need."""
        self._stopping_since_s: float | None = None

    def poll(self, number: int, at: float, mono_s: float) -> Frame | Trouble:
        """Raises: BeginAnew."""
        began_s = self._clock()
        self._renew(began_s, at)
        if self._session is None:
            return Trouble(at, self._trouble)
        if not self._session.devices and not self._known:
            self._renew_later(began_s)
            if self._choice.expected or self._session.unreadable:
                codes = ", ".join(f"GPU {index}: {code}" for index, code in self._session.unreadable.items())
                return Trouble(at, "NO_GPUS", codes)
        try:
            readings = self._read_all(at, began_s)
        except DriverLost as error:
            self._trouble = error.code
            self._check(error.code)
            self._renew_later(began_s)
            return Trouble(at, error.code)
        well = not any(reading.lost for reading in readings) and len(readings) >= (self._choice.expected or 1)
        if self._stopping_since_s is not None:
            pass  # a new session is due in any case
        elif well and not self._session.unreadable:
            self._renew_at_s, self._wait_s = float("inf"), FIRST_WAIT_S
        else:
            self._renew_later(began_s)
        took_s = self._clock() - began_s
        session = self._session
        return Frame(number, at, mono_s, took_s, session.driver, session.cuda, readings, dict(self._refused))

    def _read_all(self, at: float, began_s: float) -> tuple[GpuReading, ...]:
        assert self._session is not None
        readings: dict[str, GpuReading] = {}
        for device in self._session.devices:
            if device.uuid in self._lost_here:
                readings[device.uuid] = GpuReading(device.index, device.uuid, self._known[device.uuid].lost)
                continue
            try:
                readings[device.uuid] = device.read(self._clock, began_s)
            except DriverLost:
                raise
            except GpuLost as error:
                self._lost_here.add(device.uuid)
                readings[device.uuid] = GpuReading(device.index, device.uuid, error.code)
        for uuid, known in self._known.items():
            if uuid not in readings:
                code = self._session.unreadable.get(known.index, "GPU_NOT_FOUND")
                readings[uuid] = GpuReading(known.index, uuid, code)
        for reading in readings.values():
            self._note(reading, at)
        return tuple(sorted(readings.values(), key=lambda reading: reading.index))

    def _note(self, reading: GpuReading, at: float) -> None:
        """Say what is new about a GPU."""
        known = self._known.get(reading.uuid)
        if known is None:
            known = self._known[reading.uuid] = _Known(reading.index)
        known.index = reading.index

        def report(kind: str, code: int = 0, text: str = "") -> None:
            self._say(GpuEvent(at, reading.uuid, reading.index, kind, code, text))

        if reading.lost and not known.lost:
            report("lost", text=reading.lost)
        if known.lost and not reading.lost:
            report("recovered", text=known.lost)
        known.lost = reading.lost
        if reading.lost:
            return
        if (action := reading.values.get("recovery_action")) is not None:
            if int(action) != known.recovery_action:
                report("recovery_action", int(action))
            known.recovery_action = int(action)
        mig = tuple(sorted(one.uuid for one in reading.mig))
        if known.mig is not None and mig != known.mig:
            report("mig_changed", len(mig))
        known.mig = mig

    def _renew(self, now_s: float, at: float) -> None:
        """End the session and begin a new one, where that is due."""
        if now_s < self._renew_at_s:
            return
        if self._session is not None:
            if not self._session.stop():
                if self._stopping_since_s is None:
                    self._stopping_since_s = now_s
                if now_s - self._stopping_since_s > STOP_WITHIN_S:
                    raise BeginAnew("a thread hangs in the driver")
                return
            self._stopping_since_s = None
            self._session.close()
            self._session = None
        self._lost_here = set()
        choice, seen_us = self._choice, int((at - 1) * 1e6)
        try:
            self._session = NvmlSession(
                self._refused, choice.collectors, self._say, seen_us=seen_us, all_pids=choice.all_pids
            )
        except DriverLost as error:
            self._trouble = error.code
            self._renew_at_s = -1.0
            self._renew_later(now_s)
            self._check(error.code)
            return
        self._renew_at_s = float("inf")

    def _renew_later(self, now_s: float) -> None:
        if self._stopping_since_s is not None or now_s < self._renew_at_s < float("inf"):
            return
        self._renew_at_s = now_s + self._wait_s
        self._wait_s = min(self._wait_s * 2, MAX_WAIT_S)

    def _check(self, code: str) -> None:
        if code == "LIB_RM_VERSION_MISMATCH":
            raise BeginAnew(code)
