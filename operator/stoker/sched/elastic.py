"""Elastic jobs: with how many workers one starts.

Pure. Called by `decide`.
"""

from __future__ import annotations

from .entries import Lane
from .place import Spread, place
from .reservations import Kept
from .state import SchedulerState


def most_workers(state: SchedulerState, lane: Lane, least: Spread, kept: Kept) -> Spread:
    """Where the lane's job starts, with as many workers as are wished for or as fit beside what is kept: at least as
    many as in `least`. Cost: one search for room where the wish fits, else one per halving of what lies between."""
    request, found = lane.request, least

    def spread_of(workers: int) -> Spread | None:
        wanted = request.sized(workers)
        if not lane.queue.has_room(wanted.totals, kept.queues):
            return None
        return place(state.nodes, wanted, lane.avoid, kept.nodes)

    low, above, workers = request.workers, request.up_to + 1, request.up_to
    while workers > low:
        spread = spread_of(workers)
        if spread is None:
            above = workers
        else:
            low, found = workers, spread
        workers = (low + above) // 2
    return found
