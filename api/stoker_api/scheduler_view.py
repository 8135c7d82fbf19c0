"""What the api asks of the scheduler's state: would it fit, why does it wait, what is used. Never starts a job.

Called by `services.py`; the state is `stoker.scheduler_feed`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime

from stoker.sched.decide import decide
from stoker.sched.occupancy import node_usage, queue_usage
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.reasons import Explanation, Reason
from stoker.spec.rest import QueueUsage
from stoker.spec.rest_nodes import NodeUsage
from stoker.why.explain import explain, never_fits
from stoker.why.preemption_risk import warnings_at_submit
from stoker.worker_sizes import WorkerSizes


class SchedulerView:
    def __init__(self, feed: SchedulerFeed, sizes: WorkerSizes, *, is_operators: bool = False) -> None:
        """`is_operators`: the operator decides on the feed's state, so this leaves it as it is."""
        self._feed, self._sizes, self._is_operators = feed, sizes, is_operators

    def sized(self, job: TrainingJob) -> TrainingJob:
        """With what its workers get, as the operator will write it a moment later; without, where that isn't known."""
        return self._sizes.sized(job)

    def never_fits(self, job: TrainingJob) -> list[Reason]:
        """Why the job could not start even on an idle cluster; [] if it could."""
        return list(never_fits(self._feed.rules(), self.sized(job)))

    def warnings(self, job: TrainingJob) -> tuple[str, ...]:
        """What its submitter should know of, though the job is taken."""
        return warnings_at_submit(self._feed.rules(), job)

    async def explain(self, key: Key, now: datetime) -> Explanation:
        """Raises: KeyError if the scheduler does not know the job (yet)."""
        async with self._feed.current() as state:
            return explain(state, key, now)

    async def catch_up(self) -> None:
        await self._feed.catch_up()

    async def startable(self, now: datetime, most: int) -> list[tuple[Key, str, str]]:
        """Up to `most` jobs that could start now: key, uid, queue. They are not started.

        On a state of its own it decides for real and takes the starts back: what it found about all that can't start
        stays, so that the next call costs what has changed. The operator's state has that from its own passes.
        """
        async with self._feed.current() as state:
            with state.what_if() if self._is_operators else nullcontext():
                starts = decide(state, now, most=most).starts
                found = [(start.key, start.uid, state.entries[start.key].queue.name) for start in starts]
                for start in starts:
                    state.drop_assumption(start.key)
        return found

    async def queue_usage(self, names: Iterable[str]) -> dict[str, QueueUsage]:
        """Zeros for a queue without jobs."""
        async with self._feed.current() as state:
            return {name: queue_usage(state, name) for name in names}

    async def node_usage(self, names: Iterable[str]) -> dict[str, NodeUsage]:
        """Without those that are gone meanwhile."""
        async with self._feed.current() as state:
            return {name: node_usage(state, name) for name in names if name in state.nodes.slots}
