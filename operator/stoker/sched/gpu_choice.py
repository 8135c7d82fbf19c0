"""On GPUs of which type a request is tried: where some queue names types, a gang runs on one, and which decides whose
limit and guarantee it counts in.

Owns that order: types of which the queue, or one above, is guaranteed as much first, then those with the fewest GPUs
free, so that what is plentiful stays for those that come. Called by `decide`, `preempt`, `reservations` and
`stoker.why`.
"""

from __future__ import annotations

import numpy as np

from .entries import Lane
from .queue_state import LaneKind, QueueState
from .request import Request, Totals
from .state import SchedulerState


def choices(state: SchedulerState, queue: QueueState, request: Request) -> tuple[Request, ...]:
    """The request on GPUs of each type that would do; as it is where no queue names types. Cost: O(nodes) in numpy per
    type, if there are several."""
    if not request.gpus or not state.tree.typing:
        return (request,)
    types = state.nodes.gpus.types_for(request.filter)
    if len(types) < 2:
        return tuple(request.on(name) for name in types) or (request,)
    table, wanted = state.nodes, request.totals

    def rank(one: Request) -> tuple[bool, int, str]:
        name = one.filter.type
        theirs = any(most_within_guarantee(above, wanted, name) for above in queue.path)
        return not theirs, int(np.maximum(table.free_for(one.filter), 0).sum()), name

    return tuple(sorted((request.on(name) for name in types), key=rank))


def guarantees_types(state: SchedulerState, queue: QueueState) -> bool:
    """The queue, or one above."""
    return bool(state.tree.typing) and any(one.guarantees_types for one in queue.path)


def kind_of(state: SchedulerState, lane: Lane) -> LaneKind:
    if not lane.request.gpus or not guarantees_types(state, lane.queue):
        return lane.request.gpus > 0
    return state.nodes.gpus.types_for(lane.request.filter) or True


def most_within_guarantee(queue: QueueState, wanted: Totals, gpu_type: str) -> int:
    """How many times so much more, on GPUs of that type, the queue could hold and still hold no more than is guaranteed
    to it, of all that the guarantee names."""
    own = queue.own(gpu_type)
    if wanted.gpus and all(one.guarantee[0] is None for one in own):
        return 0
    times = [
        max(guarantee - used, 0) // want
        for one in own
        for guarantee, used, want in zip(one.guarantee, one.used, wanted, strict=True)
        if guarantee is not None and want
    ]
    return min(times, default=0)
