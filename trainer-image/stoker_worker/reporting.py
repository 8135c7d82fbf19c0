"""Posts a worker's progress and log to the api and asks it whether to stop, on a thread of its own.

Failing to report never disturbs the training.

Owns the thread, its order of work and its pauses. Imported only when there is something to report.
"""

from __future__ import annotations

import os
import threading
import time

from .alive import AliveLane
from .link import ApiLink, Refused, Unreachable
from .outgoing_reports import LogLane, ProgressLane

MYPY = False
if MYPY:
    from typing import Any, Callable

    from .folder import Launch
    from .spool import Spool

BACKOFF_S = (1.0, 2.0, 5.0, 10.0)
LAST_BACKOFF_S = 0.2
"""Between tries once the worker has ended and a stop waits for it."""


class _Turn:
    """A lane and when it may be tried again."""

    def __init__(self, lane: ProgressLane | LogLane | AliveLane) -> None:
        self.lane = lane
        self.failures = 0
        self.failed_at = 0.0
        self.pause_s = 0.0

    def failed(self, now: float, asked_s: float) -> None:
        pause_s = max(BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)], min(asked_s, BACKOFF_S[-1]))
        self.failures += 1
        # Spread out: a thousand workers that lost the api together must not come back together.
        self.pause_s = pause_s * (0.5 + os.urandom(1)[0] / 512)
        self.failed_at = now


class Reporter:
    def __init__(
        self,
        folder: str,
        launch: Launch,
        log: Spool | None = None,
        on_stop: Callable[[str], None] | None = None,
        on_sessions: Callable[[list[str]], None] | None = None,
        on_stall: Callable[[float, str], None] | None = None,
    ) -> None:
        """`log` None: progress only. `on_stop` gets the api's reason, once, on our thread.

        `on_sessions` gets the ids of sessions that wait for this worker, `on_stall` that its gang is stalled, again and
        again. With neither `on_stop` nor `on_stall` the api is not asked.
        """
        self._link = ApiLink(folder, launch.report or {})
        self._progress = ProgressLane(launch)
        self._turns = [_Turn(self._progress)]
        asks = on_stop is not None or on_stall is not None
        alive = AliveLane(launch, on_stop, on_sessions, on_stall) if asks else None
        if log is not None:
            self._turns.append(_Turn(LogLane(log, alive.take if alive is not None else None)))
        self._alive_turn = None if alive is None else _Turn(alive)
        if self._alive_turn is not None:
            self._turns.append(self._alive_turn)
        self._changed = threading.Condition()
        self._asleep = False
        self._finishing = False
        self._idle = False
        self._moved_at = 0.0
        threading.Thread(target=self._work, daemon=True).start()

    def offer(self, progress: dict[str, Any]) -> None:
        """Send this progress instead of what was not sent yet."""
        with self._changed:
            self._progress.offer(progress)
            self._changed.notify_all()

    def grown(self) -> None:
        """The log may have grown."""
        with self._changed:
            if self._asleep:
                self._changed.notify_all()

    def finish(self, limit_s: float, patience_s: float) -> bool:
        """Send what is not sent yet; whether all of it arrived.

        Units: `limit_s` seconds in all, and no longer than `patience_s` without the api taking anything.
        """
        began = time.monotonic()
        with self._changed:
            self._finishing = True
            self._idle = False
            self._turns = [turn for turn in self._turns if turn is not self._alive_turn]  # it ends anyway
            self._changed.notify_all()
            while not self._idle:
                now = time.monotonic()
                until = min(began + limit_s, max(began, self._moved_at) + patience_s)
                if now >= until:
                    return False
                self._changed.wait(until - now)
            return True

    def _work(self) -> None:
        while True:
            turn, hurry = self._next_turn()
            taken, asked_s, others_too = True, 0.0, False
            try:
                turn.lane.send(self._link, hurry)
            except Refused as refusal:
                taken, asked_s = False, refusal.retry_after_s
            except (Unreachable, OSError):
                taken, others_too = False, True
            now = time.monotonic()
            with self._changed:
                if taken:
                    turn.failures, turn.pause_s = 0, 0.0
                    self._moved_at = now
                    self._changed.notify_all()
                    continue
                for other in self._turns if others_too else [turn]:
                    other.failed(now, asked_s)

    def _next_turn(self) -> tuple[_Turn, bool]:
        """Wait for the next post that is due."""
        with self._changed:
            while True:
                waiting = [turn for turn in self._turns if turn.lane.pending()]
                self._idle = not waiting
                if not waiting:
                    self._changed.notify_all()
                    self._asleep = True
                    self._changed.wait()
                    self._asleep = False
                    continue
                now, hurry = time.monotonic(), self._finishing
                pauses = [self._pause_s(turn, now, hurry) for turn in waiting]
                shortest = min(pauses)
                if shortest <= 0:
                    return waiting[pauses.index(shortest)], hurry
                self._asleep = all(turn is self._alive_turn for turn in waiting)
                self._changed.wait(shortest)
                self._asleep = False

    def _pause_s(self, turn: _Turn, now: float, hurry: bool) -> float:
        pause_s = min(turn.pause_s, LAST_BACKOFF_S) if hurry else turn.pause_s
        return max(turn.failed_at + pause_s - now, turn.lane.ready_in(now, hurry))
