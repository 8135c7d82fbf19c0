"""The records inside the scheduler's state: one per job, queue, runtime and lane.

Owns the shapes and the order of jobs; changes nothing. Called by `state`, `decide` and `explain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

from stoker.spec.job import Claim, Phase, Placed, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.queue import NOT_NAMED, Amounts, Preemption, Queue, WithinQueue
from stoker.spec.runtime import TrainingRuntime, missing_data

from .discipline import place_in_time
from .eligible import Needs
from .request import NOTHING, Request, Totals, request_of
from .sorted_list import SortedList

Order = tuple[int, datetime, Key]
"""Of the jobs of one queue, smallest first: -priority, when it was queued (or its `discipline` puts it), key. Between
queues: `job_order`."""

NOWHERE: Mapping[str, int] = MappingProxyType({})
NO_PREEMPTION = Preemption()
NONE_KEPT: Mapping[str, Totals] = MappingProxyType({})
NO_TYPES_LATELY: Mapping[str, float] = MappingProxyType({})
NONE_TYPED: Mapping[str, Account] = MappingProxyType({})
LATEST = datetime.max.replace(tzinfo=UTC)
EARLIEST = datetime.min.replace(tzinfo=UTC)


class BlockedBy(Enum):
    """Why a lane's jobs did not start when they were last tried."""

    LIMIT = auto()  # their queue's limit
    CAPACITY = auto()  # no room on the nodes
    EITHER = auto()  # of some GPU types the limit, of others room on the nodes
    RESERVED = auto()  # room, but kept for a job ahead


LaneKind = bool | tuple[str, ...]
"""What jobs are to guarantees: without GPUs (False), with GPUs (True), or with GPUs of one of these types, where types
are guaranteed."""


class Place(NamedTuple):
    """Where a blocked lane stands among those that wait (`waiters`)."""

    blocked_by: BlockedBy
    order: Order
    """Of its head."""
    since: datetime
    """From when its head waits for room."""


@dataclass(slots=True, eq=False)
class Lane:
    """Pending jobs that are the same to the scheduler: one is tried for all.

    Invariant: while it is blocked, nothing relevant has changed, so none of `jobs` can start.
    """

    queue: QueueState
    request: Request
    avoid: frozenset[str]
    """Nodes under blame."""
    jobs: SortedList[Order] = field(default_factory=SortedList)
    place: Place | None = None
    """None: to be tried."""


@dataclass(slots=True, eq=False)
class Entry:
    """One job. Observing it again makes a new entry; only `request` and `runtime` (as runtimes change) and the fields
    from `pending` on change in place."""

    job: TrainingJob
    key: Key
    request: Request
    order: Order
    queue: QueueState
    runtime: RuntimeState
    pending: bool
    """It wants to start (whether or not it may); False once its start is assumed or observed."""
    lane: Lane | None = None
    """None while pending: not allowed in its queue or its runtime, or backing off."""
    wakes_at: datetime | None = None
    """Its timer: when back-off or the next blame ends."""
    assumed: tuple[Placed, ...] = ()
    """A start that was decided but not yet observed."""
    gpu_type: str = ""
    """Of the GPUs of `placement`, or of its claim; empty: not of one type, or none."""
    workers_on: Mapping[str, int] = field(default_factory=lambda: NOWHERE)
    """Node -> workers that are counted there for this job."""
    claim: Claim | None = None
    """Counted too: the room that is kept for it while it is pending, or, beside what it holds, until it has grown."""
    claim_decided: bool = False
    """`claim`, or its end, is not observed yet."""
    span: tuple[float, float] | None = None
    """When its attempt began and ends at the latest, as timestamps, once that was asked for (`expected_ends`)."""

    @property
    def since(self) -> datetime:
        """From when it waits for room: queued, back-off over."""
        not_before = self.job.status.not_before
        return self.queued_at if not_before is None else max(self.queued_at, not_before)

    @property
    def queued_at(self) -> datetime:
        return queued_at(self.job)

    @property
    def waiting_from(self) -> datetime:
        """The same, but not before its last attempt had ended: what its reservation may cost grows from then."""
        attempts = self.job.status.attempts
        return max(self.since, attempts[-1].ended_at) if attempts else self.since

    @property
    def admitted(self) -> bool:
        """Its queue and its runtime take it, and it is known what its workers get."""
        return self.queue.allows(self.job) and self.runtime.serves(self.job) and self.job.is_sized

    @property
    def placement(self) -> tuple[Placed, ...]:
        """Where its workers are, or are to be."""
        return self.assumed or self.job.status.placement

    @property
    def room(self) -> tuple[Placed, ...]:
        """What is counted for it: its claim, or else its place."""
        return self.placement if self.claim is None else self.claim.placement

    @property
    def kept(self) -> Mapping[str, int]:
        """Node → workers for which its claim keeps room there, beside those that it has."""
        if self.claim is None:
            return NOWHERE
        return self.workers_on if self.pending else given_up(self, self.placement)

    @property
    def held(self) -> Request:
        """What it holds where it is placed, or by its claim."""
        return self.request.on(self.gpu_type)

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Where that is counted."""
        return self.queue.accounts(self.gpu_type)

    @property
    def attempt(self) -> int:
        """That of `placement`: the operator counts up as it writes a start."""
        return self.job.status.attempt + bool(self.assumed)

    def avoided(self, now: datetime) -> frozenset[str]:
        return frozenset(blame.node for blame in self.job.status.blamed if blame.until > now)


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
        limited = self._limited(request.filter.type)
        wanted = request.totals if limited else NOTHING
        return all(
            limit is None or not want or used + keep + want <= limit
            for one in limited
            for limit, used, keep, want in zip(one.limit, one.used, kept.get(one.name, NOTHING), wanted, strict=True)
        )

    def could_hold(self, request: Request) -> bool:
        """Within the limits if nothing else ran."""
        return all(
            limit is None or want <= limit
            for one in self._limited(request.filter.type)
            for limit, want in zip(one.limit, request.totals, strict=True)
        )

    def _limited(self, gpu_type: str) -> list[Account]:
        return [one for one in self.accounts(gpu_type) if one.limit != NOT_NAMED]

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
        return self.queue is None and not self.pending and not self.holding


@dataclass(slots=True, eq=False)
class RuntimeState:
    """A runtime, also one that only jobs know of (`runtime` is None)."""

    name: str
    needs: Needs
    runtime: TrainingRuntime | None = None
    users: dict[Key, None] = field(default_factory=dict)
    """Every job that runs or would run in it, whatever its phase."""

    def serves(self, job: TrainingJob) -> bool:
        if missing_data(job.spec.data, self.runtime.spec if self.runtime is not None else None):
            return False
        if self.runtime is None:
            return job.spec.runtime is None  # then a built-in one does
        return self.takes(job.metadata.namespace)

    def takes(self, project: str) -> bool:
        projects = self.runtime.spec.projects if self.runtime is not None else ()
        return projects is None or project in projects


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """What is kept for the head of a lane, against those behind it."""

    order: Order
    lane: Lane
    request: Request
    """The lane's, on GPUs of the type that was chosen."""
    spread: tuple[tuple[int, int], ...]
    """Nodes: (slot, workers). Empty: only its share of the queue's limit, which is what blocks it."""
    settled: bool = False
    """There is no choice: of the room that is there now or kept for it already it needs all."""

    def keeps_as(self, other: Reservation) -> bool:
        """The same for the same job."""
        return (self.order[2], self.request, self.spread) == (other.order[2], other.request, other.spread)

    def binds(self, order: Order, queue: QueueState) -> bool:
        """A job with this order in that queue is behind it."""
        return self.order < order if queue is self.lane.queue else self.order[1:] < order[1:]


def is_pending(job: TrainingJob) -> bool:
    return (
        job.status.phase is Phase.QUEUED
        and not job.status.placement
        and not job.spec.suspend
        and not job.spec.cancel
        and job.metadata.deletion_timestamp is None
    )


def queued_at(job: TrainingJob) -> datetime:
    return job.status.queued_at or job.metadata.creation_timestamp or LATEST


def new_entry(job: TrainingJob, queue: QueueState, runtime: RuntimeState) -> Entry:
    key = job.key  # made anew at each access: one is kept
    at = queued_at(job)
    if queue.las:
        at = place_in_time(at, job.status.attained_gpu_seconds)
    order = (-job.spec.priority, at, key)
    pending = is_pending(job)
    claim = job.status.claim if pending or grows(job) else None
    gpu_type = claim.gpu_type if claim is not None else "" if pending else job.status.gpu_type
    request = request_now(job, runtime, job.status.placement if claim is None else claim.placement)
    return Entry(job, key, request, order, queue, runtime, pending, claim=claim, gpu_type=gpu_type)


def grows(job: TrainingJob) -> bool:
    """It is to go on with more workers than it has. (One that shrinks holds what it has until it has ended.)"""
    claim, held = job.status.claim, len(job.status.placement)
    return claim is not None and 0 < held < len(claim.placement)


def request_now(job: TrainingJob, runtime: RuntimeState, placement: Sequence[Placed]) -> Request:
    """With as many workers as it is placed with, or as there is room kept for; without a place, as it may start."""
    request = request_of(job, runtime.needs)
    return request if job.spec.elastic is None or not placement else request.sized(len(placement))


def workers_on(placement: Sequence[Placed]) -> dict[str, int]:
    """Node → workers there."""
    if len(placement) == 1:
        return {placement[0].node: 1}
    return dict(Counter(placed.node for placed in placement))


def given_up(entry: Entry, keeps: Sequence[Placed]) -> Mapping[str, int]:
    """Node → workers that it leaves there if it goes on where it `keeps` some; if nowhere, all."""
    if not keeps:
        return entry.workers_on
    left = workers_on(keeps)
    return {name: workers - left.get(name, 0) for name, workers in entry.workers_on.items()}


def earliest(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)
