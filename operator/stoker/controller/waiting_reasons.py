"""Writes why a job waits into its status: once when it is first left waiting, and again when that changes.

A job that starts in its first pass costs no such write. Others are looked at again every LOOK_S. The cost is bounded
whatever waits: reasons are worked out off the event loop, BUDGET_S a look, and each look at jobs known already is
followed by a rest: four times as long as it took, and for each status rewritten 1 / REWRITES_PER_S, where only numbers
in its message have moved 1 / REWORDINGS_PER_S, more where the store is slow to take it. So with N waiting jobs whose
numbers all move all the time a message is N / REWORDINGS_PER_S old at most while the store is quick, LOOK_S at least;
`why` works its own out as it is asked.

Called by `scheduling`, one look at a time. The messages are `why.blockers`', the condition
`life.conditions`'.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from stoker.life.admission import ADMISSION_CODES
from stoker.life.conditions import has_scheduled_condition, waiting_step
from stoker.life.step import Step
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.reasons import Code, Reason
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import Store
from stoker.why.reasons import Reasons

from .counters import Counters
from .recorder import Recorder
from .status_writes import Written, try_write_status

LOOK_S = 10.0
_SETTLE_S = 1.0
"""After a change of the job's own: it may start by itself, or be changed once more."""
BUDGET_S = 0.04
"""The scheduler waits for that long at most."""
REWRITES_PER_S = 20.0
REWORDINGS_PER_S = 4.0
"""A status costs the API server 6 ms: this is what it pays so that people read newer numbers."""
_RESTS_FOR_REWORDING = 25.0
"""The rest after such writes is at least so many times as long as they took: a busy API server pays less."""
_LONGEST_REST_S = 60.0
_RESTS_FOR_WORK = 4.0
_KNOWN_AT_ONCE = 1000
_WRITES_AT_ONCE = 64


class WaitingJobs:
    """The jobs that wait, and when each is to be looked at. Cost: O(log n) per job and look."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        feed: SchedulerFeed,
        recorder: Recorder,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self._store, self._jobs, self._feed = store, jobs, feed
        self._recorder, self._clock, self._counters = recorder, clock, counters
        self._new: dict[Key, None] = {}
        self._unsized: set[Key] = set()
        """What their workers get is being worked out: usually that is in their status a moment later."""
        self._due_s: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._rest_until: datetime = datetime.min.replace(tzinfo=UTC)

    def observe(self, job: TrainingJob) -> None:
        """A job came or changed."""
        if job.status.phase is not Phase.QUEUED or job.spec.suspend or job.spec.cancel:
            self.forget(job.key)
        elif not job.is_sized:
            if job.key not in self._unsized:
                self._put(job.key, self._clock.now().timestamp() + _SETTLE_S)
            self._unsized.add(job.key)
        elif job.key in self._unsized or (job.key not in self._due_s and job.key not in self._new):
            self.forget(job.key)
            if has_scheduled_condition(job.status):
                self._put(job.key, self._clock.now().timestamp() + _SETTLE_S)
            else:
                self._new[job.key] = None

    def forget(self, key: Key) -> None:
        self._new.pop(key, None)
        self._due_s.pop(key, None)
        self._unsized.discard(key)

    def next_at(self) -> datetime | None:
        """When a pass is wanted though nothing changed."""
        if self._new:
            return self._clock.now()
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(datetime.fromtimestamp(self._heap[0][0], UTC), self._rest_until) if self._heap else None

    async def write(self, now: datetime) -> None:
        """Look at the jobs that are due, and write what has changed."""
        new, known = list(self._new)[:_WRITES_AT_ONCE], self._take_due(now)
        if not new and not known:
            return
        began = self._clock.monotonic()
        keys = [*new, *known]
        found = await self._feed.on_thread(lambda state: self._work_out(Reasons(state, now), keys), take_in=False)
        took_s = self._clock.monotonic() - began
        late: list[tuple[TrainingJob, Step]] = []
        rest_s = _RESTS_FOR_WORK * took_s if known else 0.0
        for key, blocker in found.items():
            if key not in self._new and key not in self._due_s:
                continue  # forgotten meanwhile
            job, step = self._jobs.get(key), None
            if job is not None and blocker is not None and not _comes_with_another_write(job, blocker):
                step = waiting_step(job, blocker, now)
                if step is not None and len(late) == _WRITES_AT_ONCE:
                    continue
                if step is not None:
                    late.append((job, step))
                    rest_s += _rest_s(job, step) if key in known else 0.0
            settled = step is not None or (job is not None and has_scheduled_condition(job.status))
            self._put(key, now.timestamp() + (LOOK_S if settled else _SETTLE_S))
            known.pop(key, None)
        for key, due_s in known.items():  # not looked at, or not written: the first ones after the rest
            if key in self._due_s:
                self._put(key, due_s)
        self._rest_until = max(self._rest_until, now + timedelta(seconds=rest_s))
        began = self._clock.monotonic()
        await asyncio.gather(*(self._write(job, step) for job, step in late))
        if any(_is_reworded(job, step) for job, step in late):
            rest_s = min(_RESTS_FOR_REWORDING * (self._clock.monotonic() - began), _LONGEST_REST_S)
            self._rest_until = max(self._rest_until, self._clock.now() + timedelta(seconds=rest_s))

    def _work_out(self, reasons: Reasons, keys: Sequence[Key]) -> dict[Key, Reason | None]:
        """The first reason of each, as far as the time goes; None: it does not wait any more. On a thread."""
        until = self._clock.monotonic() + BUDGET_S
        found: dict[Key, Reason | None] = {}
        for key in keys:
            blockers = reasons.get(key, ())
            found[key] = blockers[0] if blockers else None
            if self._clock.monotonic() > until:
                break
        return found

    async def _write(self, job: TrainingJob, step: Step) -> None:
        assert step.status is not None
        written = await try_write_status(self._store, job, step.status)
        if written is Written.CHANGED:
            self._put(job.key, self._clock.now().timestamp() + _SETTLE_S)  # the next look knows better
        if written is Written.REFUSED:
            self._put(job.key, self._clock.now().timestamp() + _LONGEST_REST_S)
        if written is not Written.DONE:
            return
        if step.status.reason is not job.status.reason:
            self._counters.reason_given(step.status.reason)
        if step.note is not None:
            self._recorder.record(job, step.note)

    def _take_due(self, now: datetime) -> dict[Key, float]:
        """Known jobs to look at, the longest due first, with when they were."""
        found: dict[Key, float] = {}
        if now < self._rest_until:
            return found
        while self._heap and self._heap[0][0] <= now.timestamp() and len(found) < _KNOWN_AT_ONCE:
            due_s, key = heapq.heappop(self._heap)
            if self._due_s.get(key) == due_s:
                found[key] = due_s
        return found

    def _put(self, key: Key, due_s: float) -> None:
        self._new.pop(key, None)
        self._due_s[key] = due_s
        heapq.heappush(self._heap, (due_s, key))


def _rest_s(job: TrainingJob, step: Step) -> float:
    return 1 / (REWORDINGS_PER_S if _is_reworded(job, step) else REWRITES_PER_S)


def _is_reworded(job: TrainingJob, step: Step) -> bool:
    return step.status is not None and step.status.reason is job.status.reason


def _comes_with_another_write(job: TrainingJob, reason: Reason) -> bool:
    """What bars a job altogether comes with the condition Accepted, by its own reconcile; a claim brings its reason."""
    return reason.code in ADMISSION_CODES or (reason.code is Code.PREEMPTING and job.status.claim is None)
