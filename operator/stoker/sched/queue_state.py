"""What the scheduler knows of a queue: its place in the tree, what it and those below it hold and may hold, its jobs.

Owns this record and the rules that follow from it alone: who is let in, what a limit leaves room for, whether it is
below its guarantee. Changes nothing. Called by every module of the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.queue import NOT_NAMED, Amounts, Preemption, Queue, WithinQueue, own_gpus

from .request import NOTHING, Request, Totals
from .sorted_list import SortedList

if TYPE_CHECKING:
    from .entries import Entry, Lane, Order

NO_PREEMPTION = Preemption()
NONE_KEPT: Mapping[str, Totals] = MappingProxyType({})
NO_TYPES_LATELY: Mapping[str, float] = MappingProxyType({})
NONE_TYPED: Mapping[str, Account] = MappingProxyType({})

LaneKind = bool | tuple[str, ...]
"""What jobs are to guarantees: without GPUs (False), with GPUs (True), or with GPUs of one of these types, where types
are guaranteed."""


@dataclass(slots=True, eq=False)
class Account:
    """What a queue's jobs, with those of the queues below it, may hold and hold: of everything, or on GPUs of one
    type."""

    name: str
    """The queue's, or 'queue/type'."""
    limit: Amounts = NOT_NAMED
    guarantee: Amounts = NOT_NAMED
    """That counts: see `spec.queue_tree`."""
    used: Totals = NOTHING


class Shortage(NamedTuple):
    """What a limit lacks for a job."""

    account: Account
    kind: int
    """Of Totals."""
    amount: int


@dataclass(slots=True, eq=False)
class QueueState(Account):
    """A queue, also one that only jobs know of (`queue` is None)."""

    queue: Queue | None = None
    path: tuple[QueueState, ...] = ()
    """Itself, its parent, the parent's parent, …: what its jobs hold counts in all of them."""
    children: tuple[QueueState, ...] = ()
    """If it has any, jobs run in these only."""
    typed: Mapping[str, Account] = field(default_factory=lambda: NONE_TYPED)
    """GPU type → its account, of the types that its limit or guarantee names, or that its jobs have held. Replaced as
    one comes or changes."""
    is_guaranteed: bool = False
    """It or a queue above has a guarantee."""
    is_limited: bool = False
    """It or a queue above has a limit, of whatever."""
    weight: int = 1
    preemption: Preemption = NO_PREEMPTION
    las: bool = False
    """Its discipline; otherwise fifo."""
    budget: float = 0.0
    """Idle GPU-time that a reservation may cost, per GPU and time that its job has waited."""
    lately: tuple[float, ...] = (0.0, 0.0, 0.0)
    """What it held on average of late, as its status says."""
    lately_of: Mapping[str, float] = field(default_factory=lambda: NO_TYPES_LATELY)
    """The same of GPUs by type."""
    holding: dict[Key, None] = field(default_factory=dict)
    """Its own jobs that hold resources or are assumed to; and those with a claim."""
    holding_gpus: dict[Key, None] = field(default_factory=dict)
    """Those of them that hold GPUs."""
    pending: dict[Key, Entry] = field(default_factory=dict)
    lanes: dict[tuple[Request, frozenset[str]], Lane] = field(default_factory=dict)
    filed: SortedList[Order] = field(default_factory=SortedList)
    """All jobs of `lanes`."""
    preempts_from: tuple[Any, ...] = ()
    """The order from which on those of its lanes have their turn that are not among the first (`preempt`)."""
    levels: dict[LaneKind, tuple[tuple[object, ...], tuple[bool, float]]] = field(default_factory=dict)
    """Kind → what decides its place beside the others of its parent, and that place (`job_order`)."""

    def __post_init__(self) -> None:
        self.path = (self,)

    @property
    def parent(self) -> QueueState | None:
        return self.path[1] if len(self.path) > 1 else None

    def allows(self, job: TrainingJob) -> bool:
        if self.queue is None or self.children or self.queue.closed_to(job.metadata.creation_timestamp):
            return False
        spec = self.queue.spec
        if spec.projects is not None and job.metadata.namespace not in spec.projects:
            return False
        return spec.highest_priority is None or job.spec.priority <= spec.highest_priority

    def own(self, gpu_type: str) -> tuple[Account, ...]:
        """Its accounts for a job on GPUs of that type."""
        return (self, self.typed[gpu_type]) if gpu_type in self.typed else (self,)

    def accounts(self, gpu_type: str) -> tuple[Account, ...]:
        """The same with those of the queues above: where the job is counted. Empty: of no one type."""
        if not gpu_type:
            return self.path
        return (*self.path, *(queue.typed[gpu_type] for queue in self.path if gpu_type in queue.typed))

    @property
    def guarantees_types(self) -> bool:
        return any(one.guarantee != NOT_NAMED for one in self.typed.values())

    def has_room(self, request: Request, kept: Mapping[str, Totals] = NONE_KEPT) -> bool:
        """Within the limits, its own and those above. `kept`: account -> what is spoken for. What isn't wanted can't be
        short."""
        limited = self.limited(request.filter.type)
        if not limited:
            return True
        wanted = request.totals
        return all(
            limit is None or not want or used + keep + want <= limit
            for one in limited
            for limit, used, keep, want in zip(one.limit, one.used, kept.get(one.name, NOTHING), wanted, strict=True)
        )

    def most_within_limits(self, request: Request, kept: Mapping[str, Totals], wanted: int) -> int:
        """How many such jobs the limits leave room for, `wanted` at most; `kept` as there."""
        times = [
            max(limit - used - keep, 0) // want
            for one in self.limited(request.filter.type)
            for limit, used, keep, want in zip(
                one.limit, one.used, kept.get(one.name, NOTHING), request.totals, strict=True
            )
            if limit is not None and want
        ]
        return min([wanted, *times])

    def shortages(self, request: Request, kept: Mapping[str, Totals]) -> list[Shortage]:
        """What the limits lack for it to have room; `kept` as there."""
        return [
            Shortage(one, at, used + keep + want - limit)
            for one in self.limited(request.filter.type)
            for at, (limit, used, keep, want) in enumerate(
                zip(one.limit, one.used, kept.get(one.name, NOTHING), request.totals, strict=True)
            )
            if limit is not None and want and used + keep + want > limit
        ]

    def could_hold(self, request: Request) -> bool:
        """Within the limits if nothing else ran."""
        return not self.is_limited or all(
            limit is None or want <= limit
            for one in self.limited(request.filter.type)
            for limit, want in zip(one.limit, request.totals, strict=True)
        )

    def limited(self, gpu_type: str) -> list[Account]:
        """Those of `accounts` that have a limit."""
        if not self.is_limited:
            return []
        found: list[Account] = [one for one in self.path if one.limit != NOT_NAMED]
        if gpu_type:
            typed = [one.typed[gpu_type] for one in self.path if gpu_type in one.typed]
            found += [one for one in typed if one.limit != NOT_NAMED]
        return found

    def is_below_guarantee(self, kind: LaneKind) -> bool:
        """What the guarantee does not name is not looked at; for jobs with GPUs it must name these."""
        gpus = kind is not False
        named = [
            used < guarantee
            for used, guarantee in zip(self.used[not gpus :], self.guarantee[not gpus :], strict=True)
            if guarantee is not None
        ]
        if not all(named):
            return False
        if not gpus:
            return bool(named)
        types = kind if isinstance(kind, tuple) else ()
        typed = [
            one.used.gpus < one.guarantee[0]
            for name in types
            if (one := self.typed.get(name)) is not None and one.guarantee[0] is not None
        ]
        return any(typed) or (self.guarantee[0] is not None and (not types or len(typed) < len(types)))

    def borrowed(self, account: Account, kind: int, leaving: Mapping[str, Totals] = NONE_KEPT) -> int:
        """What one of its accounts holds, of that kind of Totals, beyond what is guaranteed; negative: what it lends.
        GPUs within the guarantee of their type are not borrowed. `leaving`: account → what is added to what it holds.
        """

        def holds(one: Account) -> int:
            return one.used[kind] + leaving.get(one.name, NOTHING)[kind]

        of_types = self.typed.values() if account is self and kind == 0 else ()
        return holds(account) - own_gpus(account.guarantee[kind], ((holds(one), one.guarantee[0]) for one in of_types))

    def subtree(self) -> Iterator[QueueState]:
        """It and all queues below."""
        yield self
        for child in self.children:
            yield from child.subtree()

    @property
    def may_preempt(self) -> bool:
        """Some of its jobs may have others stopped."""
        return self.is_guaranteed or self.las or self.preemption.within_queue is not WithinQueue.NEVER

    @property
    def is_idle(self) -> bool:
        return self.queue is None and not self.pending and not self.holding and self.used == NOTHING
