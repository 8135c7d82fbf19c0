"""What a reservation may cost and has cost, in GPU-seconds that it kept idle.

Owns the count. A job's reservation may cost its queue's `reservationBudget` x its GPUs x how long it has waited. What
it costs is counted while the nodes are kept: the GPUs that are free there, as far as jobs held back ask for as many.
Once the budget is spent, the nodes are given back; they are kept again when the budget has grown to twice the cost, so
that the next try is worth as much as all before it. None is begun that is expected to cost more than it may. Changes
the state's costs only. Called by `reservations`, `decide` and `blockers`.

The count is an integral: it grows with the time between two decides at the rate found at the end of the first. It
survives a restart as `status.reservation`, which is at most a tenth of the budget (or a minute) old.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from stoker.spec.job import ReservationCost
from stoker.spec.meta import Key

from .entries import Entry

if TYPE_CHECKING:
    from .state import SchedulerState

_WRITE_AFTER_S = 60.0
_WRITE_SHARE = 0.1


class Cost(NamedTuple):
    """Of one waiting job's reservation."""

    uid: str
    idle_s: float = 0.0
    """Units: GPU-seconds."""
    given_back: bool = False
    nodes: tuple[str, ...] = ()
    """Those kept last; it stays with them."""
    rate: float = 0.0
    """GPUs idle for its sake since the state's costs were counted."""
    written: ReservationCost | None = None
    """What its status was last seen or made to say."""


def may_cost_s(entry: Entry, now: datetime) -> float:
    """Units: GPU-seconds. Zero for a job without GPUs: it may keep none idle."""
    return _growth(entry) * max((now - entry.waiting_from).total_seconds(), 0.0)


def cost_of(state: SchedulerState, entry: Entry, now: datetime) -> Cost:
    """What its reservation has cost as of the last count, and whether it is given back at `now`."""
    known = state.costs.get(entry.key)
    if known is None:
        known = state.past_costs.get(entry.key)
    elif state.counted_at == now and known.uid == entry.job.uid:
        return known
    return _counted(known, entry, now)


def _counted(known: Cost | None, entry: Entry, now: datetime) -> Cost:
    reported = entry.job.status.reservation
    if known is None or known.uid != entry.job.uid:
        known = Cost(entry.job.uid)
    if reported is not None and (known.written is None or reported.at > known.written.at):
        known = known._replace(
            idle_s=reported.idle_gpu_s, given_back=reported.given_back, nodes=reported.nodes, written=reported
        )
    if not known.idle_s:
        spent = False
    elif known.given_back:
        spent = 2 * known.idle_s > may_cost_s(entry, now)
    else:
        spent = known.idle_s >= may_cost_s(entry, now)
    return known if spent == known.given_back else known._replace(given_back=spent)


def in_budget(state: SchedulerState, entry: Entry, now: datetime) -> bool:
    """Nodes may be kept for it now."""
    if not entry.queue.budget:
        return False
    if entry.key not in state.costs and entry.key not in state.past_costs and entry.job.status.reservation is None:
        return True
    return not cost_of(state, entry, now).given_back


def count(state: SchedulerState, now: datetime) -> bool:
    """Add what was idle since the last count. Should the clock step back, nothing is added for that step.

    True: for some job nodes may be kept no longer, or again.
    """
    turned = False
    passed_s = max((now - state.counted_at).total_seconds(), 0.0) if state.counted_at is not None else 0.0
    state.journal.set(state, "counted_at", now)
    for key, cost in list(state.costs.items()):
        entry = state.entries.get(key)
        if entry is None or entry.job.uid != cost.uid or not (entry.pending or entry.assumed):
            state.journal.drop(state.costs, key)
            continue
        new = cost
        if cost.rate and entry.pending:
            new = cost._replace(idle_s=cost.idle_s + cost.rate * passed_s)
        new = _counted(new, entry, now)
        turned = turned or new.given_back != cost.given_back
        if new is not cost:
            state.journal.put(state.costs, key, new._replace(nodes=()) if new.given_back else new)
    return turned


def charge(state: SchedulerState, now: datetime, found: dict[Key, tuple[float, tuple[str, ...]]]) -> None:
    """From now on, so many GPUs are idle for the sake of these jobs, on those nodes; for any other none."""
    journal, costs, past = state.journal, state.costs, state.past_costs
    for key in {**costs, **found}:
        rate, nodes = found.get(key, (0.0, None))
        entry = state.entries[key]
        old, known = cost_of(state, entry, now), costs.get(key)
        new = old._replace(rate=rate, nodes=old.nodes if nodes is None else nodes)
        if rate or new.given_back or _is_unsaid(new, entry, now):
            if new != known:
                journal.put(costs, key, new)
            journal.drop(past, key)
        else:
            if new != past.get(key):
                journal.put(past, key, new)
            journal.drop(costs, key)


def changes_at(state: SchedulerState, now: datetime) -> tuple[datetime | None, datetime | None]:
    """When the next budget is spent, and when the next that is spent has grown enough."""
    spent, grown = [], []
    for key, cost in state.costs.items():
        entry = state.entries[key]
        growth = _growth(entry)
        if cost.given_back and growth:
            grown.append((2 * cost.idle_s - may_cost_s(entry, now)) / growth)
        elif cost.rate > growth:
            spent.append((may_cost_s(entry, now) - cost.idle_s) / (cost.rate - growth))
    return _first(spent, now), _first(grown, now)


def unwritten(state: SchedulerState, now: datetime) -> Iterator[tuple[Key, ReservationCost]]:
    """What is to be written into these jobs' status, because it says something else by far."""
    for key, cost in state.costs.items():
        entry, old = state.entries.get(key), cost.written
        if entry is None or not entry.pending or not _is_unsaid(cost, entry, now):
            continue
        if old is not None and old.given_back == cost.given_back and (now - old.at).total_seconds() < _WRITE_AFTER_S:
            continue
        nodes = () if cost.given_back else cost.nodes
        yield key, ReservationCost(at=now, idle_gpu_s=cost.idle_s, given_back=cost.given_back, nodes=nodes)


def _is_unsaid(cost: Cost, entry: Entry, now: datetime) -> bool:
    """Its status is to say something else. What is not unsaid stays so while nothing is idle: the budget grows."""
    old = cost.written
    if old is None:
        return cost.idle_s > 0
    if (old.given_back, old.nodes) != (cost.given_back, cost.nodes):
        return True
    return cost.idle_s - old.idle_gpu_s > _WRITE_SHARE * may_cost_s(entry, now)


def _growth(entry: Entry) -> float:
    return entry.queue.budget * entry.request.workers * entry.request.gpus


def _first(seconds: list[float], now: datetime) -> datetime | None:
    # A whole second at least: who wakes for it does not turn on rounding.
    return now + timedelta(seconds=max(min(seconds), 1.0)) if seconds else None
