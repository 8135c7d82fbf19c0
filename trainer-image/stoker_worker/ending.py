"""How a worker ended: which rank failed first, and the exit record made of it (spec ExitRecord).

Pure bookkeeping: reads the clock, touches nothing else.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import time

from .folder import Launch

MYPY = False
if MYPY:
    from typing import Any

STOPPED = 75
STALLED = 78
_OUT_OF_MEMORY = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")  # the second: before torch 2.5


class Ending:
    """Collects the ranks' ends. Of several failures the first is the cause, the rest is collateral."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.started_at = time.time()
        self.grace_exceeded = False
        self.refused = False
        """Nothing was started: the worker's own folders or its code were not to be had."""
        self.held_s = 0.0
        self._stop_requested = False
        self._stalled_at: float | None = None
        self.reached = False
        """The command has reached its target, and its ranks were ended for it."""
        self._ranks: list[dict[str, Any]] = []
        self._first: dict[str, Any] | None = None
        self._message = ""
        self._out_of_memory = False
        self._memory_killed = False

    @property
    def failed(self) -> bool:
        return self._first is not None or self.stalled

    @property
    def stalled(self) -> bool:
        """The ranks made no progress, and were ended for it."""
        return self._stalled_at is not None

    @property
    def message(self) -> str:
        """One line for people about the failure."""
        return self._message

    @property
    def exit_code(self) -> int:
        """The first failure's, 128 + n where signal n ended it; without one 0, or 75 if something was not started.

        After a stall never one that looks like a good end.
        """
        if self._first is not None:
            signum = self._first["signal"]
            code = int(self._first["exitCode"] if signum is None else 128 + signum)
            return STALLED if self.stalled and code == STOPPED else code
        if self.stalled:
            return STALLED
        return 0 if len(self._ranks) >= self._launch.ranks else STOPPED

    def refuse(self, code: int, why: str) -> None:
        """Nothing can be started here."""
        self.refused = True
        self.rank_ended(0, code, None, why)

    def memory_killed(self) -> None:
        """The kernel has killed a process of ours for lack of memory; it counts before the first failure only."""
        self._memory_killed = self._memory_killed or not self.failed

    def stop_requested(self) -> None:
        """A stop counts as requested only before the first rank ended: later it explains nothing."""
        self._stop_requested = self._stop_requested or not (self._ranks or self.reached)

    def reach(self, why: str) -> None:
        """The target is reached: whatever the ranks end with, the work is done."""
        self.reached = True
        self._message = why

    def stall(self, why: str) -> None:
        """The ranks are ended for making no progress: whatever they end with, that is the cause."""
        self._stalled_at = time.time()
        self._message = why

    def rank_ended(self, local_rank: int, code: int | None, signum: int | None, last_line: str) -> None:
        rank = self._launch.worker * self._launch.ranks + local_rank
        end = {"rank": rank, "exitCode": code, "signal": signum, "at": time.time()}
        self._ranks.append(end)
        if self._first is None and code != 0 and not self.reached:
            self._first = end
            if self.stalled:
                return
            self._message = last_line
            self._out_of_memory = not self._launch.own_trainer and any(name in last_line for name in _OUT_OF_MEMORY)
            if signum is not None:
                self._message = "ended by %s" % _signal_name(signum)
                if last_line:
                    self._message += "; its last line: " + last_line

    def record(
        self, progress: dict[str, Any] | None, log_bytes: int, memory_peak_bytes: int | None = None
    ) -> dict[str, Any]:
        """The exit record with the names of the JSON."""
        first, code, message = self._first or {}, self.exit_code, self._message
        if self._first is None and code == STOPPED:
            message = "stopped before it was started"
        return {
            "version": 1,
            "podUid": self._launch.pod_uid,
            "startedAt": self.started_at,
            "finishedAt": time.time(),
            "stopRequested": self._stop_requested,
            "exitCode": code,
            "signal": first.get("signal"),
            "failedRank": first.get("rank"),
            "failedAt": first.get("at") if self._stalled_at is None else self._stalled_at,
            "ranks": self._ranks,
            "graceExceeded": self.grace_exceeded,
            "stalled": self.stalled,
            "outOfMemory": self._out_of_memory,
            "memoryKilled": self._memory_killed,
            "memoryPeakBytes": memory_peak_bytes,
            "heldS": self.held_s,
            "message": message,
            "progress": progress,
            "logBytes": log_bytes,
        }


def _signal_name(signum: int) -> str:
    for name in dir(_signal):
        if name.startswith("SIG") and not name.startswith("SIG_") and getattr(_signal, name) == signum:
            return name
    return "signal %d" % signum
