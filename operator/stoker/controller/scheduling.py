"""Runs the pure scheduler off the event loop and writes what it decides.

One pass at a time: take in what changed, decide, write every start (attempt and placement into status, fenced by
resourceVersion). A changed object wakes the next pass at once; nothing polls. Called by `operator.Operator`.

Between a pass's threads the state changes on the event loop only: a start that could not be written is taken back at
once.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from stoker.life.admission import without_accepted
from stoker.life.conditions import with_scheduled
from stoker.life.step import Note
from stoker.sched.decide import Start, decide
from stoker.sched.state import SchedulerState
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import JOBS, Phase, ReservationCost, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.outcome import Intent
from stoker.spec.reasons import Code
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import Store, StoreError

from .counters import Counters
from .jobs import SIGHT_S
from .recorder import Recorder
from .status_writes import Written, try_write_status
from .waiting_reasons import WaitingJobs

_WRITES_AT_ONCE = 256
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
        self.passes = 0
        self.starts = 0

    async def run(self) -> None:
        """Schedule until cancelled. Starts from the caches alone: what an earlier run had assumed is forgotten."""
        await self._synced()
        self._waiting = self._new_waiting()
        self._feed.start(self._woken.set, self._waiting.observe, self._waiting.forget)
        while True:
            wake_at = await self._pass()
            await self._wait(wake_at)

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
        self._woken.clear()
        began = self._clock.monotonic()
        now, state = self._clock.now(), self._feed.state
        decisions = await self._feed.on_thread(lambda state: decide(state, now))
        self.passes += 1
        for begin in range(0, len(decisions.starts), _WRITES_AT_ONCE):
            batch = decisions.starts[begin : begin + _WRITES_AT_ONCE]
            await asyncio.gather(*(self._start(state, start) for start in batch))
        await asyncio.gather(*(self._write_reservation(state, *one) for one in decisions.reservations))
        await self._waiting.write(now)
        self._counters.pass_seconds.observe(self._clock.monotonic() - began)
        return min((at for at in (decisions.wake_at, self._waiting.next_at()) if at is not None), default=None)

    async def _wait(self, wake_at: datetime | None) -> None:
        if wake_at is None:
            await self._woken.wait()
            return
        delay_s = max(0.0, (wake_at - self._clock.now()).total_seconds())
        timer = asyncio.ensure_future(self._clock.sleep(delay_s))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({timer, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            woken.cancel()

    async def _start(self, state: SchedulerState, start: Start) -> None:
        """The attempt and its placement into status: from here on the job holds its place."""
        job = self._jobs.get(start.key)
        if job is None or job.uid != start.uid or job.metadata.resource_version != start.resource_version:
            self._drop(state, start)
            return
        nodes = sorted({placed.node for placed in start.placement})
        where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
        new = job.status.model_copy(
            update={
                "phase": Phase.STARTING,
                "reason": Code.PLACED,
                "message": f"placed on {where}",
                "attempt": job.status.attempt + 1,
                "intent": Intent.NONE,
                "placement": start.placement,
                "placed_at": self._clock.now(),
                "reservation": None,
                "queued_at": job.status.queued_at or job.metadata.creation_timestamp,
                "not_before": None,
                "observed_generation": job.metadata.generation,
                "observed_retry_generation": job.spec.retry_generation,
            }
        )
        new = with_scheduled(without_accepted(new), self._clock.now(), job.metadata.generation)
        try:
            written = await try_write_status(self._store, job, new)
        except StoreError:
            self._drop(state, start)
            raise
        if written is Written.CHANGED:
            self._drop(state, start)  # it was cancelled, say; the next pass sees the job as it is
        elif written is Written.REFUSED:
            self._leave(state, job)
        else:
            self.starts += 1
            self._counters.placed()
            self._recorder.record(job, Note("Placed", f"attempt {new.attempt}: placed on {where}"))

    def _leave(self, state: SchedulerState, job: TrainingJob) -> None:
        """Schedule without this job until it changes: what is refused now would be refused in every pass."""
        entry = state.entries.get(job.key)
        if entry is not None and entry.job.metadata.resource_version == job.metadata.resource_version:
            state.forget_job(job.key)
            self._waiting.forget(job.key)
        self._woken.set()

    def _drop(self, state: SchedulerState, start: Start) -> None:
        state.drop_assumption(start.key)
        self._woken.set()

    async def _write_reservation(self, state: SchedulerState, key: Key, cost: ReservationCost) -> None:
        """What keeping nodes for the job has cost, so that it is not forgotten and `stoker why` can say it."""
        job = self._jobs.get(key)
        if job is None or job.status.phase is not Phase.QUEUED:
            return
        new = job.status.model_copy(update={"reservation": cost})
        written = await try_write_status(self._store, job, new)
        if written is Written.DONE:
            state.wrote(key, cost)
        elif written is Written.REFUSED:
            self._leave(state, job)  # where it only changed the next pass tries again
