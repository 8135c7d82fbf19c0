"""The records inside the scheduler's state: one per job, runtime and lane. Those of queues: `queue_state`.

Owns the shapes and the order of jobs; changes nothing. Called by `state`, `decide` and `explain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from stoker.spec.job import Claim, Phase, Placed, TrainingJob, Victim
from stoker.spec.meta import Key
from stoker.spec.runtime import TrainingRuntime, missing_data

from .discipline import place_in_time
from .eligible import Needs
from .queue_state import Account, QueueState
from .request import Request, request_of
from .sorted_list import SortedList

Order = tuple[int, datetime, Key]
"""Of the jobs of one queue, smallest first: -priority, when it was queued (or its `discipline` puts it), key. Between
queues: `job_order`."""

NOWHERE: Mapping[str, int] = MappingProxyType({})
LATEST = datetime.max.replace(tzinfo=UTC)
EARLIEST = datetime.min.replace(tzinfo=UTC)


class BlockedBy(Enum):
    """Why a lane's jobs did not start when they were last tried."""

    LIMIT = auto()  # their queue's limit
    CAPACITY = auto()  # no room on the nodes, or it is kept for a job ahead
    EITHER = auto()  # of some GPU types the limit, of others room on the nodes


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
    stuck: bool = False
    """Its status can't be written now: it is not asked to grow."""
    unrecorded: bool = False
    """That its attempt stops, or has ended, can't be written to its status: it holds what its pods do."""
    span: tuple[float, float] | None = None
    """When its attempt began and ends at the latest, as timestamps, once that was asked for (`expected_ends`)."""
    waited_from: datetime | None = None
    """`waiting_from`, once that was asked for."""

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
        if self.waited_from is None:
            attempts = self.job.status.attempts
            self.waited_from = max(self.since, attempts[-1].ended_at) if attempts else self.since
        return self.waited_from

    @property
    def admitted(self) -> bool:
        """Its queue and its runtime take it, and it is known what its workers get."""
        return self.queue.allows(self.job) and self.runtime.serves(self.job) and self.job.is_sized

    @property
    def placement(self) -> tuple[Placed, ...]:
        """Where its workers are, or are to be. A job that is being deleted holds what its pods do: its owner's
        finalizers may keep it for good."""
        if self.unrecorded or self.job.metadata.deletion_timestamp is not None:
            return ()
        return self.assumed or self.job.status.placement

    @property
    def room(self) -> tuple[Placed, ...]:
        """What is counted for it: its claim, or else its place."""
        return self.placement if self.claim is None else self.claim.placement

    @property
    def victims(self) -> tuple[Victim, ...]:
        """The attempts that are stopped for its claim."""
        return () if self.claim is None else self.claim.victims

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

    def share_key(self, old: Entry) -> None:
        """With the entry that it replaces, and its order if that is the same: tables find the same object sooner than
        an equal one."""
        self.key = old.key
        if self.order == old.order:
            self.order = old.order

    def avoided(self, now: datetime) -> frozenset[str]:
        return frozenset(blame.node for blame in self.job.status.blamed if blame.until > now)


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
    nodes: tuple[str, ...] = ()
    """Their names."""
    settled: bool = False
    """There is no choice: of the room that is there now or kept for it already it needs all."""

    def keeps_as(self, other: Reservation) -> bool:
        """The same for the same job."""
        return self is other or (
            (self.order[2], self.request, self.spread) == (other.order[2], other.request, other.spread)
        )

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


def new_entry(job: TrainingJob, queue: QueueState, runtime: RuntimeState, *, unrecorded: bool = False) -> Entry:
    key = job.key  # made anew at each access: one is kept
    at = queued_at(job)
    if queue.las:
        at = place_in_time(at, job.status.attained_gpu_seconds)
    order = (-job.spec.priority, at, key)
    pending = is_pending(job)
    claim = job.status.claim if pending or (grows(job) and not unrecorded) else None
    gpu_type = claim.gpu_type if claim is not None else "" if pending else job.status.gpu_type
    request = request_now(job, runtime, job.status.placement if claim is None else claim.placement)
    return Entry(
        job, key, request, order, queue, runtime, pending, claim=claim, gpu_type=gpu_type, unrecorded=unrecorded
    )


def grows(job: TrainingJob) -> bool:
    """It is to go on with more workers than it has. (One that shrinks holds what it has until it has ended.)"""
    claim, held = job.status.claim, len(job.status.placement)
    return claim is not None and 0 < held < len(claim.placement) and job.metadata.deletion_timestamp is None


def request_now(job: TrainingJob, runtime: RuntimeState, placement: Sequence[Placed]) -> Request:
    """With as many workers as it is placed with, or as there is room kept for; without a place, as it may start."""
    request = request_of(job, runtime.needs)
    return request if job.spec.elastic is None or not placement else request.sized(len(placement))


def workers_on(placement: Sequence[Placed]) -> Mapping[str, int]:
    """Node → workers there."""
    if len(placement) == 1:
        return _one_on(placement[0].node)
    return dict(Counter(placed.node for placed in placement))


@lru_cache(maxsize=2**14)
def _one_on(node: str) -> Mapping[str, int]:
    """Jobs of one place share one object."""
    return {node: 1}


def given_up(entry: Entry, keeps: Sequence[Placed]) -> Mapping[str, int]:
    """Node → workers that it leaves there if it goes on where it `keeps` some; if nowhere, all."""
    if not keeps:
        return entry.workers_on
    left = workers_on(keeps)
    return {name: workers - left.get(name, 0) for name, workers in entry.workers_on.items()}


def earliest(*times: datetime | None) -> datetime | None:
    found: datetime | None = None
    for at in times:
        if at is not None and (found is None or at < found):
            found = at
    return found
