"""Whether and for how long a worker whose command failed is kept for a look inside (`onFailure.hold`).

Owns the hold's beginning and end and how it is reported. Never ends anything itself: the loop (`supervisor`) asks.
"""

from __future__ import annotations

import time

from .ending import STOPPED, Ending
from .folder import Launch

MYPY = False
if MYPY:
    from typing import Any


class FailureHold:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._wanted = launch.hold_s > 0
        self._began_at: float | None = None

    @property
    def active(self) -> bool:
        return self._wanted and self._began_at is not None

    @property
    def until(self) -> float:
        """The end of an active hold, by the monotonic clock."""
        return (self._began_at or 0.0) + self._launch.hold_s

    def waits(self, ending: Ending, stopping: bool) -> bool:
        """Whether the worker, whose ranks have all ended, is to be held, or is held already."""
        if self._wanted:
            # A command that says 75 has saved and stopped: its gang was stopped before this worker was.
            failed = ending.failed and not ending.refused and ending.exit_code != STOPPED
            self._wanted = failed and not stopping
        return self._wanted

    def begin(self, now: float, ending: Ending) -> tuple[dict[str, Any], str]:
        """What is reported of it (spec Held), and the line for the log."""
        self._began_at = now
        since = time.time()
        until = since + self._launch.hold_s
        held = {"since": since, "until": until, "exitCode": ending.exit_code, "message": ending.message}
        entry = "stoker exec " + self._launch.job_name
        if self._launch.workers > 1:
            entry += " --worker %d" % self._launch.worker
        end = time.strftime("%H:%M:%SZ", time.gmtime(until))
        return held, "held for %s after exit code %d: `%s` enters, it ends at %s" % (
            _duration(self._launch.hold_s), ending.exit_code, entry, end,
        )  # fmt: skip

    def end(self, now: float) -> float:
        """No longer wanted. Returns: how long it was, in seconds."""
        self._wanted = False
        return max(0.0, now - (now if self._began_at is None else self._began_at))


def _duration(seconds: float) -> str:
    """As people write it: 10m, 1h30m."""
    left, text = max(1, int(seconds + 0.5)), ""
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if left >= length:
            text += "%d%s" % (left // length, unit)
            left %= length
    return text
