"""A job's queue and those above it, as they stand. Reads the state, changes nothing. Called by `explain`."""

from __future__ import annotations

from collections.abc import Callable

from stoker.sched.entries import Entry
from stoker.sched.queue_state import Account, QueueState
from stoker.sched.request import Totals
from stoker.sched.share import Cluster, share_of
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase
from stoker.spec.queue import Amounts
from stoker.spec.reasons import QueueLevel

from .phrases import in_units, resources

_DONE = (Phase.SUCCEEDED, Phase.CANCELLED)


def levels(state: SchedulerState, entry: Entry) -> tuple[QueueLevel, ...]:
    """From the job's queue upwards; none of a job that has done what it was to, or whose queue isn't there."""
    # A job that has ended may still point to the record of a queue that was deleted, and made anew, since.
    queue = state.queues.get(entry.job.spec.queue)
    if queue is None or queue.queue is None or entry.job.status.phase in _DONE:
        return ()
    return tuple(_level(one, Cluster.of(state)) for one in queue.path)


def _level(queue: QueueState, cluster: Cluster) -> QueueLevel:
    share = share_of(queue, cluster)
    return QueueLevel(
        name=queue.name,
        held=_named(queue, lambda account: account.used),
        limit=_named(queue, lambda account: account.limit),
        guarantee=_named(queue, lambda account: account.guarantee),
        problem="" if queue.queue is None else queue.queue.status.problem,
        share=round(share.value, 4),
        share_of=share.of or None,
    )


def _named(queue: QueueState, amounts: Callable[[Account], Totals | Amounts]) -> dict[str, float]:
    return {
        resource: in_units(resource, some)
        for account in (queue, *queue.typed.values())
        for resource, some in zip(resources(account), amounts(account), strict=False)
        if some is not None
    }
