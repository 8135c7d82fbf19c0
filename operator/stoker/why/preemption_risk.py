"""Warnings: a job may be preempted, and what it has done would be lost.

Owns who may be preempted as far as queues say. Called by `explain` (running jobs) and
the api (new ones).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.sched.entries import Entry
from stoker.sched.queue_state import QueueState
from stoker.sched.state import SchedulerState
from stoker.spec.job import TrainingJob
from stoker.spec.queue import WithinQueue
from stoker.spec.reasons import Change, HintCode, Reason

from .sentences import AT_RISK, AT_RISK_LATER


def warnings_at_submit(state: SchedulerState, job: TrainingJob) -> tuple[str, ...]:
    """Of a new job. Reads queues' rules only. Cost: O(depth)."""
    queue = state.queues.get(job.spec.queue)
    if queue is None or not _loses_all(job):
        return ()
    own = sum(one.name in state.tree.guaranteed for one in queue.path)
    return (AT_RISK_LATER,) if _preempts_within(queue) or len(state.tree.guaranteed) > own else ()


def warnings_of_running(state: SchedulerState, entry: Entry) -> tuple[Reason, ...]:
    """Of one that runs. It is not reclaimed while its queue, or one above, holds no more than is guaranteed to it.
    Cost: O(queues with a guarantee x depth)."""
    if not _loses_all(entry.job):
        return ()
    lenders = _lenders(state, entry.queue)
    reclaimed = any(_gives_back(entry, owner, levels) for owner, levels in lenders)
    if not _preempts_within(entry.queue) and not reclaimed:
        return ()
    change, value = Change.PREEMPTIBLE, False
    return (Reason(code=HintCode.NO_CHECKPOINT, message=AT_RISK, queue=entry.queue.name, change=change, value=value),)


def _loses_all(job: TrainingJob) -> bool:
    progress = job.status.progress
    saved = progress is not None and progress.checkpoint is not None
    return job.spec.preemptible and job.spec.trainer.recipe is None and not saved


def _preempts_within(queue: QueueState) -> bool:
    """Discipline las stops no job that has reported no checkpoint."""
    return queue.preemption.within_queue is not WithinQueue.NEVER


def _lenders(state: SchedulerState, queue: QueueState) -> Iterator[tuple[QueueState, list[QueueState]]]:
    """Each queue that may reclaim from this one; with it this one and those above, up to where the two part."""
    for owner in state.tree.guaranteed.values():
        if owner not in queue.path:
            yield owner, [one for one in queue.path if one not in owner.path]


def _gives_back(entry: Entry, owner: QueueState, levels: Sequence[QueueState]) -> bool:
    """All hold more than is guaranteed to them, of something that the owner has a guarantee of."""
    name, (gpus, *others) = entry.gpu_type, owner.guarantee
    of_type = name in owner.typed and owner.typed[name].guarantee[0] is not None
    if of_type and all(name in one.typed and one.borrowed(one.typed[name], 0) > 0 for one in levels):
        return True
    if gpus is not None and all(_lends_gpus(one, name) for one in levels):
        return True
    named = [at for at, guarantee in enumerate(others, 1) if guarantee is not None]
    return all(any(one.borrowed(one, at) > 0 for at in named) for one in levels)


def _lends_gpus(queue: QueueState, gpu_type: str) -> bool:
    """Also those of the type."""
    typed = queue.typed.get(gpu_type)
    is_kept = typed is not None and bool(typed.guarantee[0]) and queue.borrowed(typed, 0) <= 0
    return queue.borrowed(queue, 0) > 0 and not is_kept
