"""A job's queue and those above it, as they stand. Reads the state, changes nothing. Called by `explain`."""

from __future__ import annotations

from stoker.sched.entries import Entry
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase
from stoker.spec.queue import Amounts
from stoker.spec.reasons import QueueLevel

from .phrases import RESOURCES, in_units

_DONE = (Phase.SUCCEEDED, Phase.CANCELLED)


def levels(state: SchedulerState, entry: Entry) -> tuple[QueueLevel, ...]:
    """From the job's queue upwards; none of a job that has done what it was to, or whose queue isn't there."""
    # A job that has ended may still point to the record of a queue that was deleted, and made anew, since.
    queue = state.queues.get(entry.job.spec.queue)
    if queue is None or queue.queue is None or entry.job.status.phase in _DONE:
        return ()
    return tuple(
        QueueLevel(name=one.name, held=_named(one.used), limit=_named(one.limit), guarantee=_named(one.guarantee))
        for one in queue.path
    )


def _named(amounts: Amounts) -> dict[str, float]:
    named = zip(RESOURCES, amounts, strict=True)
    return {resource: in_units(resource, some) for resource, some in named if some is not None}
