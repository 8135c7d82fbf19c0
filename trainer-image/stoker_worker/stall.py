"""The end of ranks that make no progress (`stall.after`): seen, their stacks saved, then ended.

Seen from outside, by the progress file of worker 0: a wedged collective computes at full utilization, holds every lock
of the interpreter, or hangs in the driver, and none of that hinders us. The other workers of a gang learn it from the
api (`alive`) and save their stacks at the same time, for the rank that all others wait for is among them; then all
of them end their ranks.

Owns the stages and what is written: into the log, and `stacks.txt` in the worker's folder. First what the kernel shows
(`stacks`) and what our trainer prints on SIGUSR1. Then the ranks are ended: what has a handler for SIGABRT by it
(Python has one by PYTHONFAULTHANDLER: it prints all its stacks and ends), all others by SIGTERM; what outlives the
grace is the supervisor's to kill. Called by the loop (`supervisor`), which owns the processes. Imported only where a
job has a limit.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import time

from .descendants import Member, send, send_group
from .folder import STACKS_FILE, Launch
from .stacks import catches, lives, standing

MYPY = False
if MYPY:
    from typing import Any, Iterable

    from .output import Log, RankOutput
    from .steps import Steps

LOOK_EVERY_S = 1.0
PRINT_S = 2.0
"""What our trainer's ranks get to print their stacks; a dump takes milliseconds."""
GANG_S = 15.0
"""From the stall until a gang's ranks are ended: for all workers to learn of it (they ask every 5 s) and to save."""
ABORT_S = 1.0
"""From SIGABRT until the rest gets SIGTERM."""
TURN_S, TURNS_S = 0.25, 1.0
"""What a process gets to print its stacks before the next one's turn comes, and all of them together."""
FILE_BYTES = 1 << 20
LOG_LINES = 400
_ROUNDS = 2
PRINTED_BYTES = 256 << 10
"""Kept for the file of what each rank prints meanwhile."""


class Stall:
    def __init__(self, folder: str, launch: Launch, steps: Steps, log: Log) -> None:
        self._path = folder + "/" + STACKS_FILE
        self._launch = launch
        self._steps = steps
        self._log = log
        self._file_bytes = 0
        self.began = False
        self._next_at = 0.0
        """When the ranks, or what is left of them, get their next signal."""
        self._rounds = 0

    def overdue(self, now: float) -> str:
        """How long there was no progress, if too long; '': there was, or no step is known yet, or others watch."""
        steps, limit_s = self._steps, self._launch.stall_s
        if self._launch.worker or steps.step is None or now - steps.changed_at < limit_s:
            return ""
        return "step %d since %d s (stall.after: %g s)" % (steps.step, now - steps.changed_at, limit_s)

    def due(self, now: float, live: bool) -> list[float]:
        """When `is_time` or `overdue` is to be asked."""
        if not live:
            return []
        if not self.began:
            return [now + LOOK_EVERY_S] if not self._launch.worker else []
        return [self._next_at] if self._rounds < _ROUNDS else []

    def is_time(self, now: float) -> bool:
        """Whether `end` is to be called."""
        return self._rounds < _ROUNDS and now >= self._next_at

    def begin(
        self, why: str, end_at: float | None, family: list[Member], live: dict[int, int], outputs: list[RankOutput]
    ) -> dict[str, Any]:
        """Save what can be saved without harm. `end_at` None: we are the first to know; monotonic seconds.

        Returns: what is reported of it (spec Stalled).
        """
        self.began = True
        gang = self._launch.workers > 1 and self._launch.worker == 0 and self._launch.report is not None
        now = time.monotonic()
        if end_at is None:
            end_at = now + (GANG_S if gang else 0.0)
        printing = [member.pid for member in family if self._prints_stacks(member.pid)]
        self._next_at = max(end_at, now + (PRINT_S if printing else 0.0))
        self._log.say("no progress: %s; the stacks follow (also in %s), then the end" % (why, self._path))
        names = {pid: "rank %d" % self._rank(local) for pid, local in live.items()}
        found = standing((member.pid, names.get(member.pid, "below")) for member in family)
        for line in found[:LOG_LINES]:
            self._log.say("| " + line)
        if len(found) > LOG_LINES:
            self._log.say("| %d more lines are in %s" % (len(found) - LOG_LINES, self._path))
        self._write(["%s: %s" % (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "no progress: " + why), *found])
        for output in outputs:
            output.keep(PRINTED_BYTES)
        for pid in printing:
            send(pid, _signal.SIGUSR1)
        return {
            "attempt": self._launch.attempt,
            "since": time.time() - (now - self._steps.changed_at),
            "until": time.time() + self._next_at - now,
            "step": self._steps.step or 0,
            "message": why,
        }

    def end(self, family: list[Member], live: Iterable[int], outputs: list[RankOutput]) -> None:
        """Signal the ranks to end: at first only those that then print their stacks, later all of them."""
        self.collect(outputs)
        self._rounds += 1
        aborted = [member.pid for member in family if catches(member.pid, _signal.SIGABRT)] if self._rounds == 1 else []
        _abort(aborted, set(live))
        self._next_at = time.monotonic() + ABORT_S
        if not aborted:
            self._rounds = _ROUNDS
            for pid in live:
                send_group(pid, _signal.SIGTERM)

    def collect(self, outputs: list[RankOutput]) -> None:
        """Put into the file what the ranks have printed since the stall began."""
        for output in outputs:
            printed = output.kept()
            if printed:
                self._write(["", "printed by rank %d:" % output.rank, printed.decode("utf-8", "replace").rstrip("\n")])

    def _prints_stacks(self, pid: int) -> bool:
        """Our trainer does on SIGUSR1; to a command of the user's that signal may mean anything."""
        return self._launch.own_trainer and catches(pid, _signal.SIGUSR1)

    def _rank(self, local_rank: int) -> int:
        return self._launch.worker * self._launch.ranks + local_rank

    def _write(self, lines: list[str]) -> None:
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")[: max(0, FILE_BYTES - self._file_bytes)]
        self._file_bytes += len(data)
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            self._log.say("the stacks can't be written to %s: %s" % (self._path, error.strerror))


def _abort(pids: list[int], ranks: set[int]) -> None:
    """SIGABRT, in `TURNS_S` at most. To all ranks at once, for each has a pipe of its own; then to those below, one
    after the other: they write into their rank's, a few bytes at a time, so that at once no line would be whole.
    """
    until = time.monotonic() + TURNS_S
    turns = [[pid for pid in pids if pid in ranks], *([pid] for pid in pids if pid not in ranks)]
    for turn in turns:
        for pid in turn:
            _no_core(pid)
            send(pid, _signal.SIGABRT)
        turn_until = min(until, time.monotonic() + TURN_S)
        while any(lives(pid) for pid in turn) and time.monotonic() < turn_until:
            time.sleep(0.002)


def _no_core(pid: int) -> None:
    """A dump of a training's memory would fill the node. A limit of 1 stops those to a program too (core(5))."""
    try:
        import resource

        hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
        resource.prlimit(pid, resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))
    except (ImportError, AttributeError, OSError, ValueError):
        pass
