"""What the scheduler knows: nodes, queues, runtimes, jobs, its own assumed starts and foreign pods.

Owns the accounting and the pending jobs' lanes. Fed level-triggered with the objects as they are now, in any order and
as often as one likes; never reads a store or a clock. Fed by `stoker.scheduler_feed`, read by
`decide` and `stoker.why`. One thread at a time: `stoker.scheduler_feed` sees to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from operator import sub
from typing import NamedTuple

from stoker.spec.job import Claim as JobClaim
from stoker.spec.job import Placed, ReservationCost, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Discipline, Queue
from stoker.spec.rest import NodeUsage, QueueUsage
from stoker.spec.runtime import TrainingRuntime

from .budget import Cost
from .deadlines import Deadlines
from .entries import (
    EARLIEST,
    NO_PREEMPTION,
    NOWHERE,
    BlockedBy,
    Entry,
    Lane,
    Order,
    QueueState,
    Reservation,
    is_pending,
    new_entry,
    queue_limit,
)
from .expected_ends import ExpectedEnds
from .foreign_pods import ForeignPods
from .gpu_groups import Claim
from .journal import Journal
from .nodes import NodeTable
from .queue_tree import QueueTree
from .request import NOTHING, Request, Totals, request_of
from .running import RunningJobs
from .runtime_table import RuntimeTable
from .sorted_list import SortedList
from .waiters import Waiters


class NodeRoom(NamedTuple):
    """What a node has and has free, claims aside. Free is negative on a node that shrank under its jobs.

    Units: GPUs, thousandths of a core, bytes.
    """

    ready: bool
    gpus: int
    """Usable ones."""
    free_gpus: int
    cpu_milli: int
    free_cpu_milli: int
    memory_bytes: int
    free_memory_bytes: int
    jobs: tuple[Key, ...]
    others: tuple[Key, ...]
    """Pods that hold room there besides the jobs."""


class SchedulerState:
    """Cost: every observe_* and forget_* O(change); a queue's access rules O(its pending jobs), a runtime's O(its)."""

    def __init__(self, topology: Sequence[str] | None = None) -> None:
        """`topology`: its levels, as keys of node labels, outermost first; None: all nodes are close together."""
        self.journal = Journal()
        self.nodes = NodeTable(self.journal, topology)
        self.foreign_pods = ForeignPods(
            self.journal,
            self.nodes,
            freed=lambda name: self.journal.add(self.freed_nodes, name),
            filled=self._filled,
        )
        self.ends = ExpectedEnds(self.nodes, self._job)
        self.queues: dict[str, QueueState] = {}
        self.tree = QueueTree(self.journal, self.queues)
        self.runtimes = RuntimeTable(self.journal)
        self.entries: dict[Key, Entry] = {}
        self.claims: dict[Key, None] = {}
        """Jobs with a claim."""
        self.claims_of: dict[str, dict[Request, SortedList[Order]]] = {}
        """The same: queue → what is asked for → jobs."""
        self.claims_moved: dict[Key, None] = {}
        """Those whose victims changed since it was worked out when the claim is given up."""
        self.given_up = Deadlines(self.journal)
        self.victims: dict[Key, Key] = {}
        """Job that is stopped for a claim -> the claimant."""
        self.running = RunningJobs(self.journal, self.entries, self.victims)
        self.claims_unwritten: dict[Key, None] = {}
        """Jobs whose claim was decided, or its end, since the last decide."""
        self.claims_voided: set[Key] = set()
        """Of those: the room was taken by others."""
        self.timers: SortedList[tuple[datetime, Key]] = SortedList()
        # What changed since the last decide:
        self.freed_nodes: set[str] = set()
        self.freed_queues: set[str] = set()
        self.untried: dict[int, Lane] = {}  # id(lane) -> lane to be tried
        self.waiters = Waiters(self.journal)
        """All other lanes."""
        self.filled_nodes: set[str] = set()
        self.shifted = False
        """Something that reservations depend on."""
        # Of the last decide:
        self.next_reserving_at: datetime | None = None
        self.reserve_after_s = 0.0
        self.plan: tuple[Reservation, ...] = ()
        """The reservations that it left in force, in order."""
        self.costs: dict[Key, Cost] = {}
        self.counted_at: datetime | None = None
        self.spent_at: datetime | None = None
        """When the next budget is spent."""
        self.preempt_at: datetime | None = None
        """When the next claim is given up, or the next job may be preempted."""

    # -- nodes and queues

    def observe_node(self, node: GPUNode) -> None:
        if self.nodes.put(node) is not None:
            self.journal.add(self.freed_nodes, node.metadata.name)

    def forget_node(self, name: str) -> None:
        if name in self.nodes.slots:
            self.nodes.drop(name)
            self.journal.add(self.freed_nodes, name)  # a reservation may have stood on it

    def observe_queue(self, queue: Queue) -> None:
        self._set_queue(queue.metadata.name, queue)

    def forget_queue(self, name: str) -> None:
        if name in self.queues:
            self._set_queue(name, None)
            self._sweep(self.queues[name])

    def observe_runtime(self, runtime: TrainingRuntime) -> None:
        self._set_runtime(runtime.metadata.name, runtime)

    def forget_runtime(self, name: str) -> None:
        known = self.runtimes.states.get(name)
        if known is not None:
            self._set_runtime(name, None)
            self.runtimes.sweep(known)

    # -- pods

    def observe_other(self, pod: OtherPod) -> None:
        """A bound pod that is not Stoker's, and has not ended."""
        self.foreign_pods.observe_other(pod)

    def forget_other(self, key: Key) -> None:
        self.foreign_pods.forget_other(key)

    def observe_pod(self, pod: Pod) -> None:
        """A pod that Stoker sees to, in any phase. Jobs need not be known before their pods."""
        self.foreign_pods.observe_pod(pod, self.entries.get)

    def forget_pod(self, key: Key) -> None:
        self.foreign_pods.forget_pod(key)

    # -- jobs

    def observe_job(self, job: TrainingJob) -> None:
        """Take in a job as it is now. While a start is assumed, versions that are no answer to it change nothing."""
        key = job.key
        old = self.entries.get(key)
        if key in self.victims:
            self.journal.put(self.claims_moved, self.victims[key], None)
        if old is not None and (old.job == job or ((old.assumed or old.claim_decided) and _is_stale(job, old.job))):
            return
        queue, runtime = self._queue(job.spec.queue), self.runtimes.of(job)
        entry = new_entry(job, queue, runtime)
        held = dict(Counter(placed.node for placed in job.status.placement))
        stays = old is not None and (entry.request, held) == (old.request, old.workers_on)
        if old is not None and stays and held and queue is old.queue and runtime is old.runtime:
            # The usual answer to an assumed start, and every progress report: nothing moves.
            self.journal.set(entry, "workers_on", held)
            self.journal.put(self.entries, entry.key, entry)
            self.running.note(entry.key)
            for name in held:
                self.nodes.mark_moved(name)
            if queue.las and queue.filed:
                self.journal.set(self, "preempt_at", EARLIEST)  # it may have saved
            if job.status.started_at != old.job.status.started_at and queue.preemption.min_runtime is not None:
                self.journal.set(self, "shifted", True)  # from now on its time counts
            self._recount(entry.key)
            return
        self.nodes.acquire(entry.request)
        if old is not None:
            self._remove(old)
        self.journal.put(self.entries, entry.key, entry)
        self.journal.put(runtime.users, entry.key, None)
        if entry.pending:
            self._file(entry)
        else:
            self._hold(entry, job.status.placement)
        self._recount(entry.key)
        if old is not None:
            self._sweep(old.queue)
            self.runtimes.sweep(old.runtime)
        self._sweep(queue)

    def forget_job(self, key: Key) -> None:
        entry = self.entries.get(key)
        if entry is not None:
            if key in self.victims:
                self.journal.put(self.claims_moved, self.victims[key], None)
            self._remove(entry)
            self.journal.drop(self.entries, key)
            self._recount(key)
            self._sweep(entry.queue)
            self.runtimes.sweep(entry.runtime)

    # -- assumptions

    def assume(self, entry: Entry, placement: tuple[Placed, ...]) -> None:
        """Count a decided start, until observe_job shows what became of it or `drop_assumption`."""
        self._unfile(entry)
        self.journal.set(entry, "claim", None)
        self.journal.set(entry, "pending", False)
        self.journal.set(entry, "assumed", placement)
        self._hold(entry, placement)
        self._recount(entry.key)

    def drop_assumption(self, key: Key) -> None:
        """The start was not written: the job is pending again, where it was. No assumption: nothing happens."""
        entry = self.entries.get(key)
        if entry is not None and entry.assumed:
            self._unhold(entry)
            self.journal.set(entry, "assumed", ())
            self.journal.set(entry, "claim", entry.job.status.claim)
            self.journal.set(entry, "pending", True)
            self._file(entry)
            self._recount(key)

    def set_claim(self, entry: Entry, claim: JobClaim | None) -> None:
        """Count a decided claim of a pending job, or its end, until observe_job shows what became of it."""
        self._unfile(entry)
        self.journal.set(entry, "claim", claim)
        self.journal.set(entry, "claim_decided", True)
        self.journal.put(self.claims_unwritten, entry.key, None)
        self._file(entry)

    def vacate(self, key: Key) -> None:
        """In a what-if: as if the job had ended, if it runs."""
        entry = self.entries.get(key)
        if entry is not None and not entry.pending:
            self._unhold(entry)

    def wrote(self, key: Key, record: ReservationCost) -> None:
        """The job's status says so now."""
        cost = self.costs.get(key)
        if cost is not None:
            self.journal.put(self.costs, key, replace(cost, written=record))

    # -- what-if

    def checkpoint(self) -> int:
        return self.journal.checkpoint()

    def rollback(self, mark: int) -> None:
        """Take back every change since the mark, decisions included. Marks nest; each is rolled back once."""
        self.journal.rollback(mark)

    def what_if(self) -> AbstractContextManager[None]:
        return self.journal.what_if()

    # -- usage

    def queue_usage(self, name: str) -> QueueUsage:
        """What its jobs and those of queues below hold, assumed starts included, claims not; without `held_gpus`.

        Zeros for an unknown queue.
        """
        queue = self.queues.get(name) or QueueState(name)
        subtree = list(queue.subtree())
        claims = [self.entries[key].request.totals for one in subtree for key in one.holding if key in self.claims]
        gpus, cpu_milli, memory_bytes = map(int, map(sub, queue.used, map(sum, zip(NOTHING, *claims, strict=True))))
        return QueueUsage(
            gpus=gpus,
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            running=sum(len(one.holding) for one in subtree) - len(claims),
            pending=sum(len(one.pending) for one in subtree),
        )

    def node_usage(self, name: str) -> NodeUsage:
        """What jobs and other pods hold of the node. Raises: KeyError if the node is not known."""
        room = self.node_room(name)
        return NodeUsage(
            gpus=room.gpus - room.free_gpus,
            cpu_milli=room.cpu_milli - room.free_cpu_milli,
            memory_bytes=room.memory_bytes - room.free_memory_bytes,
        )

    def node_room(self, name: str) -> NodeRoom:
        """Raises: KeyError if the node is not known."""
        slot, table = self.nodes.slots[name], self.nodes
        held = table.claims.get(name, {})
        claims = [claim.request.times(claim.workers) for key, claim in held.items() if key in self.claims]
        gpus, cpu, memory = map(sum, zip(NOTHING, *claims, strict=True))
        return NodeRoom(
            ready=bool(table.ready[slot]),
            gpus=int(table.usable[slot]),
            free_gpus=int(table.free_gpu[slot]) + gpus,
            cpu_milli=int(table.cap_cpu[slot]),
            free_cpu_milli=int(table.free_cpu[slot]) + cpu,
            memory_bytes=int(table.cap_mem[slot]),
            free_memory_bytes=int(table.free_mem[slot]) + memory,
            jobs=tuple(sorted(key for key in held if key not in self.claims)),
            others=tuple(sorted(holder.key for holder in table.others.get(name, ()))),
        )

    # -- lanes and timers (for decide)

    def set_blocked_by(self, lane: Lane, blocked_by: BlockedBy | None) -> None:
        self.waiters.drop(lane)
        if blocked_by is None:
            self.journal.put(self.untried, id(lane), lane)
        else:
            self.journal.drop(self.untried, id(lane))
            self.waiters.put(lane, blocked_by, self.entries[lane.jobs.first()[2]].since)

    def file_due(self, now: datetime) -> None:
        """Move jobs whose back-off or blame has ended by `now` to the lanes where they belong."""
        while self.timers and self.timers.first()[0] <= now:
            entry = self.entries[self.timers.first()[1]]
            self._unfile(entry)
            self._file(entry, now)

    def settle(self) -> None:
        """Everything changed so far has been decided on."""
        self.journal.set(self, "freed_nodes", set())
        self.journal.set(self, "freed_queues", set())
        self.journal.set(self, "filled_nodes", set())
        self.journal.set(self, "shifted", False)

    # -- inside

    def _job(self, key: Key) -> TrainingJob | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.job

    def _queue(self, name: str) -> QueueState:
        queue = self.queues.get(name)
        if queue is None:
            queue = QueueState(name)
            self.journal.put(self.queues, name, queue)
        return queue

    def _set_queue(self, name: str, queue: Queue | None) -> None:
        known = self._queue(name)
        old = known.queue
        self.journal.set(known, "queue", queue)
        if queue_limit(queue) != known.limit:
            self.journal.set(known, "limit", queue_limit(queue))
            self.journal.add(self.freed_queues, name)
            self._end_claims(known)
        budget = 0.0 if queue is None else queue.spec.reservation_budget
        if budget != known.budget:
            self.journal.set(known, "budget", budget)
            self.journal.set(self, "shifted", True)
        preemption = NO_PREEMPTION if queue is None else queue.spec.preemption
        if preemption != known.preemption:
            self.journal.set(known, "preemption", preemption)
            self.journal.set(self, "shifted", True)
        changed = {name: known} if _access(old) != _access(queue) else {}
        las = queue is not None and queue.spec.discipline is Discipline.LAS
        if las != known.las:
            self.journal.set(known, "las", las)
            self.journal.set(self, "shifted", True)
            changed = {name: known}
        if queue is not None and known.weight != queue.spec.weight:
            self.journal.set(known, "weight", queue.spec.weight)
        (former, had), (parent, has) = (
            (None, None) if one is None else (one.spec.parent, one.spec.guarantee) for one in (old, queue)
        )
        if (former, had) != (parent, has):
            moved = self.tree.move(name, former, parent)
            self.journal.set(self, "shifted", True)  # reservations do not bind an owner
            for one in moved:
                self.journal.add(self.freed_queues, one.name)
                self._end_claims(one)
            changed |= {one.name: one for one, turned in moved.items() if turned}
        for one in changed.values():
            for entry in list(one.pending.values()):
                self._unfile(entry)
                self.journal.set(entry, "order", new_entry(entry.job, one, entry.runtime).order)
                self._file(entry)

    def _end_claims(self, queue: QueueState) -> None:
        """Those of the queue and below were worked out for other limits."""
        for key in [key for one in queue.subtree() for key in one.holding if key in self.claims]:
            self.set_claim(self.entries[key], None)

    def _set_runtime(self, name: str, runtime: TrainingRuntime | None) -> None:
        changed, moved = self.runtimes.put(name, runtime)
        for key in changed:
            self._retarget(self.entries[key])
        for key in moved:
            self._move(self.entries[key])

    def _move(self, entry: Entry) -> None:
        """The runtime of its project's jobs that name none may be another one now."""
        former, runtime = entry.runtime, self.runtimes.of(entry.job)
        if runtime is not former:
            self.journal.drop(former.users, entry.key)
            self.journal.put(runtime.users, entry.key, None)
            self.journal.set(entry, "runtime", runtime)
            self._retarget(entry)
            self.runtimes.sweep(former)

    def _retarget(self, entry: Entry) -> None:
        """Its runtime lets it on other nodes than before, asks for other things, or takes other projects."""
        request = request_of(entry.job.spec, entry.runtime.needs)
        if entry.pending:
            self._unfile(entry)
        for name in entry.workers_on:
            self.nodes.unclaim(name, entry.key)
            self.journal.add(self.freed_nodes, name)
        self.nodes.acquire(request)
        self.nodes.release(entry.request)
        self.journal.set(entry, "request", request)
        for name, workers in entry.workers_on.items():
            self.nodes.claim(name, entry.key, Claim(workers, request))
        if entry.pending:
            self._file(entry)

    def _recount(self, key: Key) -> None:
        if key in self.foreign_pods.of_job:
            self.foreign_pods.recount(key, self.entries.get(key))

    def _sweep(self, queue: QueueState) -> None:
        # A job that neither waits nor runs may still name a record that was swept, and made anew, long ago.
        if queue.is_idle and self.queues.get(queue.name) is queue:
            self.journal.drop(self.queues, queue.name)

    def _remove(self, entry: Entry) -> None:
        if entry.pending:
            self._unfile(entry)
        self._unhold(entry)
        self.nodes.release(entry.request)
        self.journal.drop(entry.runtime.users, entry.key)

    def _file(self, entry: Entry, now: datetime | None = None) -> None:
        """Put a pending job into its lane. Without `now`, what depends on the time is left to the next decide."""
        self.journal.put(entry.queue.pending, entry.key, entry)
        if not entry.admitted:
            if entry.claim is not None:
                self.journal.put(self.claims_unwritten, entry.key, None)
            return
        if entry.claim is not None:
            self._claim(entry, entry.claim)
            return
        status = entry.job.status
        if status.not_before is not None and (now is None or status.not_before > now):
            self._arm(entry, status.not_before)
            return
        if status.blamed and now is None:
            self._arm(entry, EARLIEST)
            return
        avoid: frozenset[str] = frozenset()
        if status.blamed and now is not None:
            avoid = entry.avoided(now)
            if avoid:
                self._arm(entry, min(blame.until for blame in status.blamed if blame.until > now))
        self._join(entry, avoid)

    def _join(self, entry: Entry, avoid: frozenset[str]) -> None:
        lanes = entry.queue.lanes
        lane = lanes.get((entry.request, avoid))
        if lane is None:
            lane = Lane(entry.queue, entry.request, avoid)
            self.journal.put(lanes, (entry.request, avoid), lane)
            self.set_blocked_by(lane, None)
        first = lane.jobs.first() if lane.jobs else entry.order
        for jobs in (lane.jobs, entry.queue.filed):
            jobs.add(entry.order)
            self.journal.note(jobs.remove, entry.order)
        self.journal.set(entry, "lane", lane)
        if entry.order < first:
            self._set_head(lane)

    def _unfile(self, entry: Entry) -> None:
        self.journal.drop(entry.queue.pending, entry.key)
        self._unclaim(entry)
        if entry.wakes_at is not None:
            timer = (entry.wakes_at, entry.key)
            self.timers.remove(timer)
            self.journal.note(self.timers.add, timer)
            self.journal.set(entry, "wakes_at", None)
        lane = entry.lane
        if lane is None:
            return
        first = lane.jobs.first()
        for jobs in (lane.jobs, entry.queue.filed):
            jobs.remove(entry.order)
            self.journal.note(jobs.add, entry.order)
        self.journal.set(entry, "lane", None)
        if first == entry.order:
            self._set_head(lane)
        if not lane.jobs:
            self.journal.drop(lane.queue.lanes, (lane.request, lane.avoid))
            self.journal.drop(self.untried, id(lane))

    def _claim(self, entry: Entry, claim: JobClaim) -> None:
        self.journal.put(self.claims, entry.key, None)
        self.journal.put(self.claims_moved, entry.key, None)
        kinds = self.claims_of.get(entry.queue.name)
        if kinds is None:
            kinds = {}
            self.journal.put(self.claims_of, entry.queue.name, kinds)
        if entry.request not in kinds:
            self.journal.put(kinds, entry.request, SortedList())
        kinds[entry.request].add(entry.order)
        self.journal.note(kinds[entry.request].remove, entry.order)
        for victim in claim.victims:
            self.journal.put(self.victims, victim.key, entry.key)
            self.running.note(victim.key)
        self._hold(entry, claim.placement)

    def _unclaim(self, entry: Entry) -> None:
        if entry.key not in self.claims:
            return
        self._unhold(entry)
        self.journal.drop(self.claims, entry.key)
        self.journal.drop(self.claims_moved, entry.key)
        self.given_up.set(entry.key, None)
        kinds = self.claims_of[entry.queue.name]
        orders = kinds[entry.request]
        orders.remove(entry.order)
        self.journal.note(orders.add, entry.order)
        if not orders:
            self.journal.drop(kinds, entry.request)
        for victim in entry.claim.victims if entry.claim is not None else ():
            if self.victims.get(victim.key) == entry.key:
                self.journal.drop(self.victims, victim.key)
                self.running.note(victim.key)

    def _filled(self, name: str) -> None:
        self.journal.set(self, "shifted", True)  # reservations may move to other nodes
        self.journal.add(self.filled_nodes, name)

    def _set_head(self, lane: Lane) -> None:
        """Its first job is another one, or there is none any more."""
        self.journal.set(self, "shifted", True)
        place = lane.place
        if place is not None:
            self.waiters.drop(lane)
            if lane.jobs:
                self.waiters.put(lane, place.blocked_by, self.entries[lane.jobs.first()[2]].since)

    def _arm(self, entry: Entry, at: datetime) -> None:
        timer = (at, entry.key)
        self.timers.add(timer)
        self.journal.note(self.timers.remove, timer)
        self.journal.set(entry, "wakes_at", at)

    def _hold(self, entry: Entry, placement: Iterable[Placed]) -> None:
        held = Counter(placed.node for placed in placement)
        if not held:
            return
        self.journal.set(entry, "workers_on", dict(held))
        for name, workers in held.items():
            self.nodes.claim(name, entry.key, Claim(workers, entry.request))
        self._charge(entry, 1)
        self.journal.set(self, "shifted", True)  # reservations may move to other nodes

    def _unhold(self, entry: Entry) -> None:
        if not entry.workers_on:
            return
        for name in entry.workers_on:
            self.nodes.unclaim(name, entry.key)
            self.journal.add(self.freed_nodes, name)
        self._charge(entry, -1)
        self.journal.set(entry, "workers_on", NOWHERE)
        for queue in entry.queue.path:
            if queue is entry.queue or queue.limit != (None, None, None):
                self.journal.add(self.freed_queues, queue.name)

    def _charge(self, entry: Entry, sign: int) -> None:
        amounts = entry.request.times(sign * sum(entry.workers_on.values()))
        for queue in entry.queue.path:
            used = (have + more for have, more in zip(queue.used, amounts, strict=True))
            self.journal.set(queue, "used", Totals(*used))
        self.running.note(entry.key)
        if sign > 0:
            self.journal.put(entry.queue.holding, entry.key, None)
        else:
            self.journal.drop(entry.queue.holding, entry.key)


def _access(queue: Queue | None) -> tuple[bool, datetime | None, tuple[str, ...] | None, int | None]:
    return (
        queue is not None,
        queue.metadata.deletion_timestamp if queue is not None else None,
        queue.spec.projects if queue is not None else None,
        queue.spec.highest_priority if queue is not None else None,
    )


def _is_stale(job: TrainingJob, decided_on: TrainingJob) -> bool:
    """`job` can't know of the start that was decided on `decided_on`: the same object, not newer, without placement."""
    new, old = job.metadata, decided_on.metadata
    if new.uid != old.uid or not is_pending(job):
        return False
    if new.resource_version.isdecimal() and old.resource_version.isdecimal():
        return int(new.resource_version) <= int(old.resource_version)
    return new.resource_version == old.resource_version
