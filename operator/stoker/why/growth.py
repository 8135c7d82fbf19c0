"""What an elastic job that runs with fewer workers than it may have waits for.

Reads the state, changes nothing. Called by `explain`.
"""

from __future__ import annotations

from datetime import datetime

from stoker.sched.elastic import Growths, may_grow
from stoker.sched.entries import Entry
from stoker.sched.reservations import Kept
from stoker.sched.state import SchedulerState
from stoker.spec.reasons import HintCode, Reason

from . import sentences


def growth(state: SchedulerState, entry: Entry, now: datetime) -> tuple[Reason, ...]:
    """Nothing for a job that may not have more workers than it has."""
    if entry.key not in state.elastic.placed or not may_grow(state, entry):
        return ()
    found = Growths(state, now, Kept(state, (one for one in state.plan if one.order[2] in state.entries))).of(entry)
    has, most = len(entry.placement), entry.job.spec.most_workers
    message = sentences.grows(has, most, len(found.placement), found.waits_for, found.at)
    return (Reason(code=HintCode.GROWS, message=message, queue=entry.queue.name, until=found.at),)
