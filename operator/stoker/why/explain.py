"""Why a job is where it is, and what would start it: the whole answer of `stoker why`.

Owns the explanation and the check that a job could ever fit. Works in a what-if that is taken back: the state stays
as it was. Called by the api.
"""

from __future__ import annotations

from datetime import datetime

from stoker.life.failure_hold import hold_hints, hold_message
from stoker.life.stall import stacks_command, stall_message
from stoker.sched.decide import decide
from stoker.sched.elastic import Growths, may_grow
from stoker.sched.eligible import BUILT_IN
from stoker.sched.entries import Entry
from stoker.sched.request import request_of
from stoker.sched.reservations import RESERVE_AFTER_S, Kept
from stoker.sched.state import SchedulerState
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.outcome import Category
from stoker.spec.quantity import format_duration
from stoker.spec.reasons import Code, Explanation, HintCode, Reason

from . import sentences
from .blockers import never_in_queue
from .capacity_reasons import never_on_nodes
from .counterfactuals import hints
from .failure_hints import failure_hints
from .phrases import listed
from .preemption_risk import warnings_of_running
from .queue_levels import levels
from .reasons import Reasons


def explain(state: SchedulerState, key: Key, now: datetime, *, reserve_after_s: float = RESERVE_AFTER_S) -> Explanation:
    """Every blocker with its numbers, the position in the queue, and hints that were tried out.

    Cost: one decide per hint tried, a few milliseconds. Raises: KeyError if the job was never observed.
    """
    entry = state.entries[key]
    phase = str(entry.job.status.phase)
    queues = levels(state, entry)
    if not entry.pending:
        ways = _ways_on(state, entry) + _growth(state, entry, now)
        return Explanation(phase=phase, summary=_summary(entry), hints=ways, queues=queues)
    with state.what_if():
        decisions = decide(state, now, reserve_after_s=reserve_after_s)
        start = next((start for start in decisions.starts if start.key == key), None)
        if start is not None:
            nodes = listed(sorted({placed.node for placed in start.placement}), 3)
            summary = f"can start now, on {nodes}; its turn is next"
            return Explanation(phase=phase, summary=summary, position=1, queues=queues)
        found = Reasons(state, now).of(entry)
        position = 1 + entry.queue.filed.rank(entry.order)
        tried = () if found[0].code in (Code.PREEMPTING, Code.RESIZED) else hints(state, entry, now, reserve_after_s)
    more = len(found) - 1
    summary = found[0].message + (f" (and {more} more)" if more else "")
    return Explanation(phase=phase, summary=summary, blockers=found, position=position, hints=tried, queues=queues)


def never_fits(state: SchedulerState, job: TrainingJob) -> tuple[Reason, ...]:
    """Why the job could never start; empty if some set of the known nodes, empty of jobs, and its queue could hold it.

    Nodes that are away and GPUs that can't be leased at the moment count: they may come back. With no nodes known, and
    for a queue that isn't, nothing is ruled out. The job need not have been observed.
    """
    runtime = state.runtimes.states.get(state.runtimes.name_of(job))
    request = request_of(job, runtime.needs if runtime is not None else BUILT_IN)
    queue = state.queues.get(job.spec.queue)
    return (
        *(never_in_queue(queue, request) if queue is not None else ()),
        *never_on_nodes(state.nodes, request),
    )


def _summary(entry: Entry) -> str:
    job, status = entry.job, entry.job.status
    if entry.assumed:
        return f"placed on {_nodes(entry)}; its start is being recorded"
    message = f": {status.message}" if status.message else ""
    if job.metadata.deletion_timestamp is not None:
        return "being deleted"
    match status.phase:
        case Phase.QUEUED if job.spec.cancel:
            return "being cancelled"
        case Phase.QUEUED | Phase.SUSPENDED if job.spec.suspend:
            return "suspended on request; resume it to queue it again"
        case Phase.STARTING:
            return f"placed on {_nodes(entry)}; its workers are starting{message}"
        case Phase.RUNNING if status.held is not None:
            return f"not training any more on {_nodes(entry)}: {hold_message(job, status.held)}"
        case Phase.RUNNING if status.stalled is not None:
            return f"stalled on {_nodes(entry)}: {stall_message(job, status.stalled)}"
        case Phase.RUNNING:
            return f"running on {_nodes(entry)} in attempt {status.attempt}{message}"
        case Phase.STOPPING:
            return f"stopping on {_nodes(entry)}; what it holds is free once its workers have ended{message}"
        case phase if phase in ENDED:
            ran = f" after running {format_duration(status.ran_s)}" if status.ran_s else ""
            return f"{phase.lower()}{ran}{message}"
        case phase:
            return f"{phase.lower()}{message}"


def _ways_on(state: SchedulerState, entry: Entry) -> tuple[Reason, ...]:
    job = entry.job
    if entry.assumed or job.metadata.deletion_timestamp is not None:
        return ()
    if job.status.phase is Phase.RUNNING and job.status.held is not None:
        return tuple(Reason(code=Code.HELD, message=way) for way in hold_hints(job, job.status.held))
    if job.status.phase is Phase.RUNNING and (found := warnings_of_running(state, entry)):
        return found
    last = job.status.attempts[-1] if job.status.attempts else None
    if last is not None and last.category is Category.STALLED:
        message = f"{stacks_command(job, last.number)} shows where its processes stood when that attempt stalled"
        return (Reason(code=Code.STALLED, message=message),)
    return failure_hints(job) if job.status.phase is Phase.FAILED else ()


def _growth(state: SchedulerState, entry: Entry, now: datetime) -> tuple[Reason, ...]:
    """What an elastic job waits for that runs with fewer workers than it may have."""
    if entry.key not in state.elastic.placed or not may_grow(state, entry):
        return ()
    found = Growths(state, now, Kept(state, (one for one in state.plan if one.order[2] in state.entries))).of(entry)
    has, most = len(entry.placement), entry.job.spec.most_workers
    message = sentences.grows(has, most, len(found.placement), found.waits_for, found.at)
    return (Reason(code=HintCode.GROWS, message=message, queue=entry.queue.name, until=found.at),)


def _nodes(entry: Entry) -> str:
    return listed(sorted(entry.workers_on), 3) or "no node"
