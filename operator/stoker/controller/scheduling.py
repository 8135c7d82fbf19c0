"""Runs the pure scheduler off the event loop and writes what it decides.

One pass at a time: take in what changed, decide. What it decides is written beside the next passes (attempt and
placement into status, fenced by resourceVersion), at most `decided_writes.AT_ONCE` at a time: it decides no further
ahead than that, and less where deciding takes longer than LOOK_S. A changed object wakes the next pass at once, or
within LOOK_S where many writes are under way or a pass has just ended; nothing polls. Called by `operator.Operator`.

What became of a write is taken into the state by the next pass, on its thread. One that fails is its job's alone: it
is tried again after a back-off of that job's. Where it may have been done the job's room stays counted until its next
version says so or the same write is answered; where the store has refused it the job is left aside until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial

from stoker.life.conditions import with_scheduled
from stoker.life.placement import placed_status
from stoker.life.preemption import claim_message
from stoker.life.step import Note
from stoker.sched.decide import ClaimChange, Decisions, Start, decide
from stoker.sched.entries import is_pending
from stoker.sched.state import SchedulerState
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import JOBS, Phase, ReservationCost, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Key
from stoker.spec.reasons import Code
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock, wait_for
from stoker.store.port import Store
from stoker.store.workqueue import WorkQueue

from .counters import Counters
from .decided_writes import AT_ONCE, DecidedWrites, Write
from .jobs import SIGHT_S
from .recorder import Recorder
from .status_writes import Written, try_write_status
from .waiting_reasons import WaitingJobs

LOOK_S = 0.05
_RESTS_FOR_WORK = 2.0
_LEAST_REST_S = 0.02
"""A pass is followed by a rest so many times as long, of at least this and of LOOK_S at most: what changes meanwhile,
and pods change in bursts, is one more pass."""
_AGAIN_S = 0.5
"""After a first write that failed, then twice as long each time, up to a minute."""
_FEWEST = 16
_PAGE = 500


class Scheduling:
    """The loop around `sched.decide`."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        feed: SchedulerFeed,
        recorder: Recorder,
        clock: Clock,
        *,
        counters: Counters | None = None,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._feed = feed
        self._recorder = recorder
        self._clock = clock
        self._counters = counters or Counters()
        self._waiting = self._new_waiting()
        self._woken = asyncio.Event()
        self._forget_writes()
        self.passes = 0
        self.starts = 0

    async def run(self) -> None:
        """Schedule until cancelled. Starts from the caches alone: what an earlier run had assumed is forgotten."""
        await self._synced()
        self._waiting = self._new_waiting()
        self._feed.start(self._woken.set, self._waiting.observe, self._waiting.forget)
        self._forget_writes()
        repeating = asyncio.create_task(self._repeat())
        try:
            while True:
                began = self._clock.monotonic()
                wake_at = await self._pass()
                if len(self._writes) > AT_ONCE // 2:
                    await wait_for(self._writes.eased, self._clock, LOOK_S)
                elif not self._more:
                    rest_s = _RESTS_FOR_WORK * (self._clock.monotonic() - began)
                    await self._clock.sleep(min(max(rest_s, _LEAST_REST_S), LOOK_S))
                await wait_for(self._woken, self._clock, self._seconds_until(wake_at))
        finally:
            repeating.cancel()
            self._due.shutdown()
            await self._writes.close()

    def _forget_writes(self) -> None:
        self._writes = DecidedWrites(self._written)
        self._due: WorkQueue[Key] = WorkQueue(self._clock, base_s=_AGAIN_S)
        self._again: dict[Key, Write] = {}
        """Jobs to be seen to once more when they are due."""
        self._ahead = AT_ONCE
        """Starts, or claims for as long, that a pass may decide."""
        self._recording: set[Key] = set()
        """Jobs whose reservation is being written."""
        self._reasons_due = True
        """No task works out and writes reasons."""
        self._more = False
        """The last pass decided as much as it might."""
        self._learned: list[Callable[[SchedulerState], None]] = []
        """What became of writes."""

    def _new_waiting(self) -> WaitingJobs:
        return WaitingJobs(self._store, self._jobs, self._feed, self._recorder, self._clock, self._counters)

    async def _synced(self) -> None:
        """Half of the truth would start jobs in room that is held.

        The caches were in order once; here they reach what stands in the store now. A scheduler that ran a moment ago,
        in this process or another, may have placed a job that no watch has shown yet.
        """
        await self._feed.synced()
        newest, token = 0, None
        while True:
            page = await self._store.list(JOBS, limit=_PAGE, continue_token=token)
            newest = max([newest, *(int(job.metadata.resource_version) for job in page.items)])
            token = page.continue_token
            if token is None:
                break
        await self._jobs.at_least(str(newest), timeout_s=SIGHT_S)

    async def _pass(self) -> datetime | None:
        if self._writes.failure is not None:
            raise self._writes.failure
        self._woken.clear()
        began, now = self._clock.monotonic(), self._clock.now()
        learned, self._learned = self._learned, []
        most = max(min(AT_ONCE - len(self._writes), self._ahead), 1)

        def work(state: SchedulerState) -> tuple[Decisions, float]:
            for take_in in learned:
                take_in(state)
            at = self._clock.monotonic()
            return decide(state, now, most=most), self._clock.monotonic() - at

        decisions, took_s = await self._feed.on_thread(work)
        self._ahead = ahead(self._ahead, took_s)
        self.passes += 1
        self._counters.pass_seconds.observe(self._clock.monotonic() - began)
        self._more = decisions.is_cut_short
        for start in decisions.starts:
            self._writes.add(partial(self._start, start))
        for change in decisions.claims:
            self._writes.add_claim(partial(self._write_claim, change))
        for key, cost in decisions.reservations:
            if key not in self._recording:
                self._recording.add(key)
                self._writes.add(partial(self._write_reservation, key, cost))
        look_at = self._waiting.next_at() if self._reasons_due else None
        if look_at is not None and look_at <= self._clock.now():
            self._reasons_due, look_at = False, None
            self._writes.add(self._write_reasons)
        if self._more and len(self._writes) < AT_ONCE:
            self._woken.set()
        return min((at for at in (decisions.wake_at, look_at) if at is not None), default=None)

    def _written(self) -> None:
        if self._more or self._writes.failure is not None:
            self._woken.set()

    async def _write_reasons(self) -> None:
        try:
            await self._waiting.write(self._clock.now())
        finally:
            self._reasons_due = True
            self._woken.set()

    def _seconds_until(self, at: datetime | None) -> float | None:
        return None if at is None else max(0.0, (at - self._clock.now()).total_seconds())

    async def _start(self, start: Start) -> None:
        """The attempt and its placement into status: from here on the job holds its place.

        If the job has changed meanwhile, its next version ends the start that the state assumes: until that has come
        the write may have been our own, whose answer was lost, and the room is not another's.
        """
        job = self._jobs.get(start.key)
        if job is None or job.uid != start.uid or job.metadata.resource_version != start.resource_version:
            self._due.forget(start.key)
            return
        new = placed_status(job, start.placement, start.gpu_type, self._clock.now())
        if await self._try(job, new, partial(self._start, start)):
            self.starts += 1
            self._counters.placed()
            self._recorder.record(job, Note("Placed", f"attempt {new.attempt}: {new.message}"))

    async def _try(self, job: TrainingJob, status: TrainingJobStatus, again: Write) -> bool:
        """Write it. Returns: it is done; else, where it is not known, it is done `again` later."""
        written = await try_write_status(self._store, job, status)
        if written is Written.REFUSED:
            self._leave(job)
        elif written is Written.UNKNOWN:
            self._put_off(job.key, again)
        else:
            self._due.forget(job.key)
        return written is Written.DONE

    def _put_off(self, key: Key, write: Write) -> None:
        self._again[key] = write
        self._due.add_backoff(key)

    async def _repeat(self) -> None:
        while True:
            key = await self._due.get()
            self._due.done(key)
            if key in self._again:
                self._writes.add(self._again.pop(key))

    def stopped_unrecorded(self, job: TrainingJob) -> None:
        """Its reconcile could not write that its attempt stops, or has ended."""
        self._learned.append(lambda state: state.count_by_pods(job))
        self._woken.set()

    def _leave(self, job: TrainingJob) -> None:
        """Schedule without this job until it changes, or for a while: what is refused now would be refused in every
        pass. What it holds stays counted."""

        def leave(state: SchedulerState) -> None:
            entry = state.entries.get(job.key)
            if entry is not None and entry.job.metadata.resource_version == job.metadata.resource_version:
                state.forget_job(job.key)
                self._waiting.forget(job.key)
                if not is_pending(job):
                    state.observe_job(job)
                    state.stick(job.key)

        self._learned.append(leave)
        self._woken.set()
        self._put_off(job.key, partial(self._take_back, job))

    async def _take_back(self, job: TrainingJob) -> None:
        if self._jobs.get(job.key) is not job:
            self._due.forget(job.key)
            return

        def take_back(state: SchedulerState) -> None:
            state.forget_job(job.key)
            state.observe_job(job)
            self._waiting.observe(job)

        self._learned.append(take_back)
        self._woken.set()

    async def _write_claim(self, change: ClaimChange) -> None:
        """The claim, or its end, into status: from here on its victims are stopped by their own reconciles; or it is
        itself, so that it grows.

        If the job has changed meanwhile, the next pass decides again.
        """
        job = self._jobs.get(change.key)
        if job is None or job.uid != change.uid or job.metadata.resource_version != change.resource_version:
            self._due.forget(change.key)
            return
        claim = change.claim
        update: dict[str, object] = {"claim": claim}
        preempts = claim is not None and bool(claim.victims)
        if claim is not None and preempts:
            update |= {"reason": Code.PREEMPTING, "message": claim_message(job, claim)}
        new = job.status.model_copy(update=update)
        if preempts:
            new = with_scheduled(new, self._clock.now(), job.metadata.generation)
        if not await self._try(job, new, partial(self._write_claim, change)):
            return
        if change.voided:
            self._counters.claim_voided(job)
            self._recorder.record(job, Note("ClaimVoided", "pods outside Stoker took the room that was kept for it"))
        if claim is not None and preempts:
            self._counters.reason_given(Code.PREEMPTING)
            self._recorder.record(job, Note("Preempting", claim_message(job, claim)))

    async def _write_reservation(self, key: Key, cost: ReservationCost) -> None:
        """What keeping nodes for the job has cost, so that it is not forgotten and `stoker why` can say it."""
        try:
            job = self._jobs.get(key)
            if job is None or job.status.phase is not Phase.QUEUED:
                return
            new = job.status.model_copy(update={"reservation": cost})
            written = await try_write_status(self._store, job, new)
            if written in (Written.DONE, Written.UNKNOWN):  # the next one says it too
                self._learned.append(lambda state: state.wrote(key, cost))
            elif written is Written.REFUSED:
                self._leave(job)  # where it only changed the next pass tries again
        finally:
            self._recording.discard(key)


def ahead(most: int, took_s: float) -> int:
    """How many starts the next pass may decide, as the last, which might decide `most`, took so long to decide."""
    return max(most // 2, _FEWEST) if took_s > LOOK_S else min(2 * most, AT_ONCE)
