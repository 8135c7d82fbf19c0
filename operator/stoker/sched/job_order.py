"""The order in which jobs are tried: the heads of many lanes, merged.

Owns the order between jobs. Between queues, at each level of their tree: one that holds less than its guarantee goes
first, then the one with the least `share`, then the job that has waited longer. Within a queue higher priority goes
first, then the longer wait: a priority never passes another queue's job. In a queue with a guarantee that holds for
jobs that stand on the same level: those with and without GPUs, or of different types, may not. Called by `decide`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count, islice
from operator import is_
from typing import Any, NamedTuple, Protocol

from .entries import Lane, Order
from .gpu_choice import guarantees_types, kind_of
from .queue_state import LaneKind, QueueState
from .request import NOTHING, Totals
from .share import Cluster, share_of
from .state import SchedulerState
from .waiters import From, LaneIndex, Waiting

Rank = tuple[Any, ...]
"""A group's place among all, smallest first: (level by level from the top: guarantee, share), age of its head, True
if that `is_behind`."""


class Stream(Protocol):
    """Blocked lanes of one queue."""

    only_reserves: bool
    index: LaneIndex
    """Where they stand, among others."""

    @property
    def gpus(self) -> bool | None:
        """All its lanes want GPUs, those of one filter, or none does. None: some of each may be there."""

    def first(self, begin: From) -> Waiting | None:
        """The first from there on."""

    def youngest(self, priority: int) -> Order | None:
        """The last of that priority (an order's first part) as the pass began."""


class _Part:
    """Those lanes of a stream that are of one kind."""

    gpus = None

    def __init__(self, state: SchedulerState, stream: Stream, kind: LaneKind) -> None:
        self._state, self._stream, self._kind = state, stream, kind
        self.only_reserves, self.index, self.youngest = stream.only_reserves, stream.index, stream.youngest

    def first(self, begin: From) -> Waiting | None:
        found = self._stream.first(begin)
        while found is not None and kind_of(self._state, found.lane) != self._kind:
            found = self._stream.first((*found.order, 0))
        return found


class _Turn(NamedTuple):
    order: Order
    is_behind: bool
    """Right after the turn of that order, which is of another kind in its queue."""
    only_reserves: bool
    """It comes after that of the same lane which may start it."""
    number: int
    lane: Lane | None
    """None: it only holds back what stands behind it."""
    stream: Stream | None


@dataclass(slots=True, eq=False)
class _Group:
    """Turns of one queue that differ in nothing but their order."""

    queue: QueueState
    kind: LaneKind
    """If its queue is guaranteed something."""
    above: _Branch
    padding: int
    """How often its level counts, so that its rank is as long as the deepest queue's."""
    turns: list[_Turn] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    """Those that are looked at as its turn comes."""
    looked_at: int = 0
    """So many of the streams have their turns."""
    last: From = ()
    """The order of its last turn."""
    rank: Rank = ()
    """That it stands under, until its turn shows that it has another one by now: a start can only put it back. Before
    all streams have been looked at: the beginning of one."""


@dataclass(slots=True, eq=False)
class _Branch:
    """What stands below one queue of the tree, or below none: groups, and the branches of queues between."""

    queue: QueueState | None
    kind: LaneKind
    above: _Branch | None
    heads: list[tuple[Rank, int, _Group | _Branch]] = field(default_factory=list)
    """Some are no longer."""
    rank: Rank = ()
    """As a group's: with that of its first."""


class JobOrder:
    """A merge of the queues, each sorted by Order. A queue's lanes are looked for once its level comes first: mostly
    what got free is taken by then. Cost: add, pop O(depth of the tree x log lanes): a start moves its queue among those
    with the same parent, that one among its own, and so on."""

    def __init__(self, state: SchedulerState, lanes: Iterable[Lane]) -> None:
        self._state, self._cluster = state, Cluster.of(state)
        self._top = _Branch(None, False, None)
        self._out: _Group | None = None
        """That of the last turn: it stands among the others again when the next is asked for, as it may hold more."""
        self._taken: _Turn | None = None
        """The last turn, if the next of its stream is not looked for yet."""
        self._groups: dict[tuple[str, LaneKind], _Group] = {}
        self._kinds: dict[str, list[_Group]] = {}
        """Queue that is guaranteed something → its groups."""
        self._branches: dict[tuple[str, LaneKind], _Branch] = {}
        self._count = count()
        for lane in lanes:
            self.add(lane)

    def add(self, lane: Lane) -> None:
        turn = _Turn(lane.jobs.first(), False, False, next(self._count), lane, None)
        self._push(lane.queue, kind_of(self._state, lane), turn)

    def follow(self, name: str, stream: Stream) -> None:
        """Blocked lanes of the queue in order, each looked for as its turn comes; the first as the queue's does."""
        queue = self._state.queues[name]
        if queue.is_guaranteed:
            self._follow_kinds(queue, stream)
            return
        group = self._group(queue, False)
        group.streams.append(stream)
        if group.looked_at == len(group.streams) - 1:
            self._enter(group)

    def _follow_kinds(self, queue: QueueState, stream: Stream) -> None:
        """Their first turns are looked for at once: jobs of one kind hold back those of another."""
        parts: dict[LaneKind, Stream] = {stream.gpus is True: stream}
        if guarantees_types(self._state, queue):
            kinds = dict.fromkeys(kind_of(self._state, lane) for lane in queue.lanes.values())
            parts = {kind: _Part(self._state, stream, kind) for kind in kinds}
        elif stream.gpus is None:
            parts = {kind: _Part(self._state, stream, kind) for kind in (True, False)}
        held_back = list(filter(None, map(stream.youngest, self._priorities(queue))))
        for kind, part in parts.items():
            for order in held_back:
                self._push(queue, kind, _Turn(order, False, part.only_reserves, next(self._count), None, None))
            turn = self._first_turn(part)
            if turn is not None:
                self._push(queue, kind, turn)

    def _priorities(self, queue: QueueState) -> list[int]:
        """If the queue's lanes differ in it: those of the blocked ones."""
        lanes = self._state.lanes
        found = lanes.waiters.heads[queue.name].priorities() if queue.name in lanes.waiters.heads else []
        untried = {lane.jobs.first()[0] for lane in lanes.untried if lane.queue is queue}
        return found if len(untried.union(found)) > 1 else []

    def in_a_row(self, lane: Lane, most: int) -> list[Order]:
        """The last turn was the lane's: of its jobs those of one priority, so many at most, that would have the next
        turns, were the lane added again after each and each held what it asks for by then; or fewer."""
        group = self._out
        if group is None or group.queue is not lane.queue:
            return []
        orders = list(islice(lane.jobs, most))
        kinds = self._kinds.get(lane.queue.name, ())
        if any(other.turns and other.turns[0].order[0] < orders[0][0] for other in kinds):
            return []  # of another kind, that may come to stand on the same level
        end: tuple[Any, ...] = (orders[0][0] + 1,)
        if group.turns:
            end = min(end, group.turns[0].order)
        if orders[-1] >= end:
            del orders[bisect_left(orders, end) :]
        if len(self._groups) > 1 and orders:
            first = self._first(self._top)
            if first is not None:
                del orders[self._before(group, lane, orders, first) :]
        return orders

    def _before(self, group: _Group, lane: Lane, orders: Sequence[Order], other: _Group | _Branch) -> int:
        """How many of the lane's jobs, one after another, come before the other; or fewer."""

        def is_before(count: int) -> bool:
            """The next one, when so many have had their turns."""
            more = lane.request.times(count * lane.request.workers)
            rank: Rank = self._level(group.queue, group.kind, more) * group.padding + orders[count][1:]
            above: _Branch | None = group.above
            while above is not None and above.queue is not None:
                rank, above = self._level(above.queue, above.kind, more) + rank, above.above
            return rank < other.rank

        if not is_before(0):
            return 0
        # What the other's rank is depends on theirs below one queue; and by type on where they come to be placed.
        if other.queue is None or other.queue.path[-1] is group.queue.path[-1] or self._cluster.of_types:
            return 1
        return bisect_left(range(len(orders)), True, key=lambda count: not is_before(count))

    def pop(self) -> tuple[Order, Lane, bool] | None:
        """The next head and its lane, and whether it may but reserve. None: there is none.

        A lane that was started from is to be added again if it has more.
        """
        following, self._taken = self._following(self._taken), None
        while (group := self._next_group()) is not None:
            self._out = group
            if self._is_held_back(group):
                continue
            turn = heappop(group.turns)
            group.last, lane = turn.order, turn.lane
            if self._kinds:
                self._release(group)
            if turn.stream is not None:
                now = turn if turn is following else turn.stream.first(turn.order)
                if now is None or now.order != turn.order:
                    lane = None
                    if now is not None:
                        heappush(group.turns, turn._replace(order=now.order, lane=now.lane, number=next(self._count)))
                elif turn.only_reserves:
                    self._taken = turn  # if none comes between, the next is then looked for once, not twice
                else:
                    self._following(turn)
            if lane is not None:
                return turn.order, lane, turn.only_reserves
        return None

    def _following(self, taken: _Turn | None) -> _Turn | None:
        """The next turn of the same stream, which joins those of the group that is out."""
        if taken is None or taken.stream is None or self._out is None:
            return None
        found = taken.stream.first((*taken.order, 0))
        if found is None:
            return None
        turn = _Turn(found.order, False, taken.only_reserves, next(self._count), found.lane, taken.stream)
        heappush(self._out.turns, turn)
        return turn

    def _next_group(self) -> _Group | None:
        """Taken out of those that have turns."""
        if len(self._groups) == 1:  # whatever its rank
            (group,) = self._groups.values()
            if group.looked_at < len(group.streams):
                self._look(group)
            return group if group.turns else None
        if self._out is not None and self._out.turns:
            self._enter(self._out)
        self._out = None
        return self._first_group()

    def _first_group(self) -> _Group | None:
        """Taken out, as its rank changes with its turn."""
        head = self._first(self._top)
        while isinstance(head, _Branch):
            head = self._first(head)
        if head is not None:
            heappop(head.above.heads)
            head.rank = ()
        return head

    def _first(self, branch: _Branch) -> _Group | _Branch | None:
        """With the rank that it has now; it and those below it stay where they are."""
        while branch.heads:
            rank, _, head = branch.heads[0]
            if rank is head.rank:
                if isinstance(head, _Group) and head.looked_at < len(head.streams):
                    self._look(head)
                now_at = self._rank(head)
                if now_at == rank:
                    return head
                head.rank = now_at
                if now_at:
                    heapreplace(branch.heads, (now_at, next(self._count), head))
                    continue
            heappop(branch.heads)
        return None

    def _look(self, group: _Group) -> None:
        for stream in group.streams[group.looked_at :]:
            turn = self._first_turn(stream)
            if turn is not None:
                heappush(group.turns, turn)
        group.looked_at = len(group.streams)

    def _first_turn(self, stream: Stream) -> _Turn | None:
        found = stream.first(())
        if found is None:
            return None
        return _Turn(found.order, False, stream.only_reserves, next(self._count), found.lane, stream)

    def _is_held_back(self, group: _Group) -> bool:
        """Its next turn comes after one that holds it back: of what its streams had as the pass began the youngest
        whose priority comes before. It makes no difference unless others stand on the same level. Or the first of
        another kind that stands there, if its priority is higher."""
        ahead = self._ahead(group) if self._kinds else None
        if ahead is not None:
            heappush(group.turns, _Turn(ahead.order, True, False, next(self._count), None, None))
            return True
        last, end = group.last, group.turns[0].order[:1]
        if end == last[:1] or not group.streams or len(self._groups) == 1 or not self._has_equals(group):
            return False
        found = [
            youngest
            for stream in group.streams
            for priority in stream.index.priorities(last[:1], end)
            if (youngest := stream.youngest(priority)) is not None and youngest > last
        ]
        if found:
            last = max(found, key=lambda order: order[1:])
            heappush(group.turns, _Turn(last, False, False, next(self._count), None, None))
        return bool(found)

    def _ahead(self, group: _Group) -> _Turn | None:
        """The first turn of one of the queue's other kinds, on the same level, of higher priority than the group's."""
        for other in self._kinds.get(group.queue.name, ()):
            if other is group or not other.turns or other.turns[0].is_behind:
                continue
            if other.turns[0].order[0] < group.turns[0].order[0] and all(
                self._level(queue, other.kind) == self._level(queue, group.kind) for queue in group.queue.path
            ):
                return other.turns[0]
        return None

    def _release(self, taken: _Group) -> None:
        """Its first turn is over, behind which those of other kinds stand."""
        for other in self._kinds.get(taken.queue.name, ()):
            if other.turns and other.turns[0].is_behind and other is not taken:
                heappop(other.turns)
                self._enter(other)

    def _has_equals(self, group: _Group) -> bool:
        """Among those with which it, or one above it, is compared."""
        level, above = self._level(group.queue, group.kind) * group.padding, group.above
        while True:
            # What stands there stands no later than it will once it is looked at.
            first = self._first(above) if above.heads and above.heads[0][0][: len(level)] <= level else None
            if first is not None and first.rank[: len(level)] == level:
                return True
            if above.queue is None or above.above is None:
                return False
            level, above = self._level(above.queue, above.kind) + level, above.above

    def _push(self, queue: QueueState, kind: LaneKind, turn: _Turn) -> None:
        group = self._group(queue, kind)
        heappush(group.turns, turn)
        if group.turns[0] is turn and group is not self._out:
            self._enter(group)

    def _group(self, queue: QueueState, kind: LaneKind) -> _Group:
        kind = kind if queue.is_guaranteed else False
        group = self._groups.get((queue.name, kind))
        if group is None:
            above, padding = self._branch(queue.path[1:], kind), 1 + self._state.tree.depth - len(queue.path)
            group = self._groups[queue.name, kind] = _Group(queue, kind, above, padding)
            if queue.is_guaranteed:
                self._kinds.setdefault(queue.name, []).append(group)
        return group

    def _branch(self, path: tuple[QueueState, ...], kind: LaneKind) -> _Branch:
        """Of the first queue of the path, whose others are above it."""
        if not path:
            return self._top
        found = self._branches.get((path[0].name, kind))
        if found is None:
            found = _Branch(path[0], kind, self._branch(path[1:], kind))
            self._branches[path[0].name, kind] = found
        return found

    def _enter(self, group: _Group) -> None:
        """Let it stand where its first turn puts it, and those above it no later than that."""
        head: _Group | _Branch = group
        rank: Rank = self._rank(group)
        while True:
            head.rank, above = rank, head.above
            assert above is not None
            heappush(above.heads, (rank, next(self._count), head))
            if above.queue is None:
                return
            rank = self._level(above.queue, above.kind) + rank
            if above.rank and above.rank <= rank:
                return
            head = above

    def _rank(self, head: _Group | _Branch) -> Rank:
        """As of now, from its own level on; (): nothing is left of it."""
        if isinstance(head, _Group):
            known = head.looked_at == len(head.streams)
            if known and not head.turns:
                return ()
            level = self._level(head.queue, head.kind) * head.padding
            if known:
                level += head.turns[0].order[1:]
                return (*level, True) if head.turns[0].is_behind else level
            return level
        first = self._first(head)
        assert head.queue is not None
        return self._level(head.queue, head.kind) + first.rank if first is not None else ()

    def _level(self, queue: QueueState, kind: LaneKind, more: Totals = NOTHING) -> Rank:
        """`more`: if it held that besides."""
        if any(more):
            queue = copy(queue)
            queue.used, queue.levels = queue.used.plus(more), {}
        known = queue.levels.get(kind)
        held = queue.used, queue.lately, queue.lately_of, queue.typed
        of = *held, *self._cluster, queue.guarantee, queue.weight
        if known is not None and all(map(is_, known[0], of)):
            return known[1]
        level = (not queue.is_below_guarantee(kind), share_of(queue, self._cluster).value)
        queue.levels[kind] = of, level
        return level
