"""Live progress: the newest report per job, overlaid on what is shown and now and then written into status.

`ProgressBoard` is plain state: reports and job changes in, what is due out, time as an argument. `ProgressWriter`
carries the writes out (status.progress, manager `api`): at most one a minute and job, one per new checkpoint, one when
a hold begins or goes (onFailure.hold), one when the attempt is over. A job's usage of GPUs (`usage/board.py`) goes with
each of them, and by itself where it is due and progress is not. After a restart the board is empty and what the
store holds is shown. Nothing here ever stops training: a report that is not taken is only counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from stoker.spec.job import JOBS, PLACED, TrainingJob
from stoker.spec.meta import Key, StatusModel
from stoker.spec.worker import Held, Progress, Stalled
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock, wait_for
from stoker.store.port import Conflict, Invalid, NotFound, Store, StoreError
from stoker_api.due_writes import RETRY_S, WRITE_EVERY_S, DueWrites
from stoker_api.usage.board import UsageBoard, UsageWrite

log = logging.getLogger(__name__)

MANAGER = "api"
CHECKPOINT_EVERY_S = 1.0
_AT_ONCE = 32


@dataclass(slots=True)
class _Live:
    key: Key
    attempt: int
    progress: Progress
    written: Progress | None
    """What status.progress holds by now."""
    written_at_s: float
    over: bool = False
    """The attempt has ended: forget it once it is written."""


@dataclass(frozen=True, slots=True)
class ProgressWrite:
    """A status write that is due."""

    uid: str
    key: Key
    progress: Progress


class ProgressBoard:
    """Invariant: holds only jobs that are placed, and those whose last progress is still to be written."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._due = DueWrites()

    def __len__(self) -> int:
        return len(self._live)

    def report(self, job: TrainingJob, attempt: int, progress: Progress, now_s: float, worker: int = 0) -> bool:
        """Take a report. False: it is of a stale attempt, says nothing new, or is none of this worker's business.

        Worker 0 reports for its gang, as its exit record does for the attempt. But each worker reports its own hold,
        and that of the first to fail is shown.
        """
        if attempt < job.status.attempt:
            return False
        live, newest = self._live.get(job.uid), self.newest(job)
        if attempt != job.status.attempt or (live is not None and live.attempt != attempt):
            newest = _freed(newest)  # a hold of the attempt before
        reported = _merged(newest, progress if _runs(job) else _freed(progress), worker)
        if reported is None:
            return False
        if live is not None and live.attempt == attempt:
            live.progress = reported
        else:
            written = job.status.progress
            # Another attempt before, or another api process before this one, wrote lately: keep the pace.
            written_at_s = now_s - WRITE_EVERY_S if written is None else now_s
            live = _Live(job.key, attempt, reported, written, written_at_s, over=not _runs(job))
            self._live[job.uid] = live
        self._schedule(job.uid, live, now_s)
        return True

    def newest(self, job: TrainingJob) -> Progress | None:
        """The newest of what was reported, what status holds and what the last attempt's record held."""
        found = job.status.progress
        if job.status.attempts:
            found = _later(found, _freed(job.status.attempts[-1].progress))
        live = self._live.get(job.uid)
        if live is not None:
            found = _later(found, live.progress)
        return found if _runs(job) else _freed(found)

    def observe(self, change: Change[TrainingJob], now_s: float) -> bool:
        """Take over a change of a job. True: something became due."""
        old, new = change.old, change.new
        if new is None:
            return old is not None and self.forget(old.uid)
        live = self._live.get(new.uid)
        if live is None and not _runs(new) and _state(new.status.progress) != (None, None):
            # An api process before this one wrote that it was held, and none that it is over.
            live = _Live(new.key, new.status.attempt, Progress(at=0), new.status.progress, now_s)
            self._live[new.uid] = live
        elif live is None or live.over or (_runs(new) and new.status.attempt <= live.attempt):
            return False
        live.over = True
        newest = _freed(self.newest(new))
        if newest is not None:
            live.progress = newest
        self._schedule(new.uid, live, now_s)
        return True

    def take_due(self, now_s: float) -> list[ProgressWrite]:
        """What is to be written now; each is given out once, and again by `retry`."""
        found = []
        for uid in self._due.take(now_s):
            live = self._live[uid]
            if live.progress == live.written:
                self._settle(uid, live)
            else:
                live.written_at_s = now_s
                found.append(ProgressWrite(uid, live.key, live.progress))
        return found

    def written(self, write: ProgressWrite, now_s: float) -> None:
        live = self._live.get(write.uid)
        if live is None:
            return
        live.written = write.progress
        if live.progress == live.written:
            self._settle(write.uid, live)
        else:
            self._schedule(write.uid, live, now_s)

    def retry(self, write: ProgressWrite, now_s: float) -> None:
        if write.uid in self._live:
            self._due.add(write.uid, now_s + RETRY_S)

    def forget(self, uid: str) -> bool:
        """False: nothing was known of it."""
        self._due.remove(uid)
        return self._live.pop(uid, None) is not None

    @property
    def next_due_s(self) -> float | None:
        return self._due.next_s

    def _schedule(self, uid: str, live: _Live, now_s: float) -> None:
        if live.over:
            at_s = now_s
        elif _checkpoint(live.progress) not in (None, _checkpoint(live.written)) or (
            _state(live.progress) != _state(live.written)
        ):
            at_s = live.written_at_s + CHECKPOINT_EVERY_S
        else:
            at_s = live.written_at_s + WRITE_EVERY_S
        self._due.add(uid, max(now_s, at_s))

    def _settle(self, uid: str, live: _Live) -> None:
        if live.over:
            self.forget(uid)


class ProgressWriter:
    """Writes what is due on the boards until cancelled."""

    def __init__(
        self,
        board: ProgressBoard,
        jobs: WatchCache[TrainingJob],
        store: Store,
        clock: Clock,
        on_write: Callable[[], None] = lambda: None,
        usage: UsageBoard | None = None,
    ) -> None:
        self._board, self._store, self._clock, self._on_write = board, store, clock, on_write
        self._usage = UsageBoard(jobs.by_uid) if usage is None else usage
        self._woken = asyncio.Event()
        self._jobs = jobs

    def wake(self) -> None:
        """Something may have become due."""
        self._woken.set()

    async def run(self) -> None:
        unsubscribe = self._jobs.subscribe(self._on_job)
        try:
            while True:
                self._woken.clear()
                writes = self._due()
                for begin in range(0, len(writes), _AT_ONCE):
                    await asyncio.gather(*(self._write(*write) for write in writes[begin : begin + _AT_ONCE]))
                await self._wait()
        finally:
            unsubscribe()

    def _due(self) -> list[tuple[ProgressWrite | None, UsageWrite | None]]:
        """What is to be written now, one patch each."""
        now_s, now = self._clock.monotonic(), self._clock.now()
        progress = self._board.take_due(now_s)
        # Usage goes with the progress of its job; what is still due is written by itself.
        both: list[tuple[ProgressWrite | None, UsageWrite | None]] = [
            (write, self._usage.write_now(write.uid, now_s, now)) for write in progress
        ]
        return both + [(None, usage) for usage in self._usage.take_due(now_s, now)]

    def _on_job(self, change: Change[TrainingJob]) -> None:
        now_s = self._clock.monotonic()
        if self._board.observe(change, now_s) | self._usage.observe(change, now_s):
            self._woken.set()

    async def _wait(self) -> None:
        due = [at_s for at_s in (self._board.next_due_s, self._usage.next_due_s) if at_s is not None]
        left_s = max(0.0, min(due) - self._clock.monotonic()) if due else None
        await wait_for(self._woken, self._clock, left_s)

    async def _write(self, progress: ProgressWrite | None, usage: UsageWrite | None) -> None:
        write = progress or usage
        assert write is not None
        job = self._jobs.get(write.key)
        patch = {}
        if progress is not None:
            old = None if job is None else job.status.progress
            patch["progress"] = replacing(_plain(old), _plain(progress.progress))
        if usage is not None:
            patch["usage"] = replacing(_plain(None if job is None else job.status.usage), _plain(usage.usage))
        try:
            await self._store.patch_status(JOBS, write.key, patch, manager=MANAGER, uid=write.uid)
        except (NotFound, Conflict):
            self._forget(write.uid)  # the job is gone
        except Invalid as error:
            log.error("%s of %s can't be stored: %s", " and ".join(patch), write.key, error)
            self._forget(write.uid)
        except StoreError as error:
            log.warning("%s of %s is written later: %s", " and ".join(patch), write.key, error)
            self._reported(progress, usage, self._board.retry, self._usage.retry)
        else:
            if progress is not None:
                self._on_write()
            self._reported(progress, usage, self._board.written, self._usage.written)

    def _reported(
        self,
        progress: ProgressWrite | None,
        usage: UsageWrite | None,
        of_progress: Callable[[ProgressWrite, float], None],
        of_usage: Callable[[UsageWrite, float], None],
    ) -> None:
        now_s = self._clock.monotonic()
        if progress is not None:
            of_progress(progress, now_s)
        if usage is not None:
            of_usage(usage, now_s)

    def _forget(self, uid: str) -> None:
        self._board.forget(uid)
        self._usage.forget(uid)


def replacing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The RFC 7396 merge patch after which `old` has become `new`, whatever keys `new` lacks."""
    patch: dict[str, Any] = dict.fromkeys(old)
    for name, value in new.items():
        before = old.get(name)
        patch[name] = replacing(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return patch


@overload
def _freed(progress: Progress) -> Progress: ...
@overload
def _freed(progress: None) -> None: ...
@overload
def _freed(progress: Progress | None) -> Progress | None: ...
def _freed(progress: Progress | None) -> Progress | None:
    """The same of an attempt that is over: whatever was held or stalled no longer is."""
    if progress is None or (progress.held is None and progress.stalled is None):
        return progress
    return progress.model_copy(update={"held": None, "stalled": None})


def _merged(newest: Progress | None, reported: Progress, worker: int) -> Progress | None:
    """The gang's progress with this report of `worker`; None: nothing new."""
    late = newest is not None and reported.at <= newest.at
    known, held = _held(newest), None if reported.held is None else reported.held.model_copy(update={"worker": worker})
    if held is None and (worker != 0 or late):
        return None
    if held is None or (known is not None and known.worker != worker and known.since <= held.since):
        held = None if known is not None and known.worker == worker else known
    if worker == 0 and not late:
        return reported.model_copy(update={"held": held})
    if held == known:
        return None
    # Newer than what is known, whatever the clock of this worker's node says: so it is seen beside what is stored.
    at = reported.at if newest is None else max(reported.at, newest.at + 0.001)
    return (newest or Progress(at=at)).model_copy(update={"at": at, "held": held})


def _plain(value: StatusModel | None) -> dict[str, Any]:
    return {} if value is None else value.dump()


def _runs(job: TrainingJob) -> bool:
    return job.status.phase in PLACED


def _checkpoint(progress: Progress | None) -> int | None:
    return None if progress is None or progress.checkpoint is None else progress.checkpoint.step


def _state(progress: Progress | None) -> tuple[Held | None, Stalled | None]:
    """What is shown at once when it begins and when it ends."""
    return (None, None) if progress is None else (progress.held, progress.stalled)


def _held(progress: Progress | None) -> Held | None:
    return None if progress is None else progress.held


def _later(one: Progress | None, other: Progress | None) -> Progress | None:
    if one is None or (other is not None and other.at > one.at):
        return other
    return one
