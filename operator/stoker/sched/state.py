"""What the scheduler knows: nodes, queues, runtimes, jobs, its own assumed starts and foreign pods.

Owns how an object's change reaches the tables that it is made of: `nodes`, `queue_tree`, `runtime_table`, `lanes`,
`claim_table`, `holdings`, `running`, `elastic_jobs`, `foreign_pods`, `deleted_jobs`. Fed level-triggered with the
objects as they are now, in any order and as often as one likes; never reads a store or a clock. Fed by
`stoker.scheduler_feed`, read by `decide` and `stoker.why`. One thread at a time: `stoker.scheduler_feed` sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from stoker.spec.gpu_types import SHIPPED, GpuTypes
from stoker.spec.job import Claim, Placed, ReservationCost, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime

from .budget import Cost
from .changes import Changes
from .claim_table import ClaimTable
from .deleted_jobs import DeletedJobs
from .elastic_jobs import ElasticJobs
from .entries import EARLIEST, Entry, Lane, Reservation, is_pending, new_entry, request_now, workers_on
from .expected_ends import ExpectedEnds
from .foreign_pods import ForeignPods
from .fork import fork
from .holdings import Holdings
from .journal import Journal
from .lanes import Lanes
from .nodes import NodeTable
from .queue_tree import QueueTree
from .running import RunningJobs, loss_of, may_be_stopped
from .runtime_table import RuntimeTable


class SchedulerState:
    """Cost: every observe_* and forget_* O(change); a queue's access rules O(its pending jobs), a runtime's O(its)."""

    def __init__(self, topology: Sequence[str] | None = None, gpu_types: GpuTypes = SHIPPED) -> None:
        """`topology`: its levels, as keys of node labels, outermost first; None: all nodes are close together."""
        self.journal = Journal()
        self.nodes = NodeTable(self.journal, topology, gpu_types)
        self.changes = changes = Changes(self.journal)
        self.tree = QueueTree(self.journal, changes)
        self.queues = self.tree.queues
        self.runtimes = RuntimeTable(self.journal)
        self.entries: dict[Key, Entry] = {}
        self.ends = ExpectedEnds(self.nodes, self.entries)
        self.victims: dict[Key, Key] = {}
        """Job that is stopped for a claim → the claimant."""
        self.running = RunningJobs(self.journal, self.entries, self.victims, self.nodes.slots)
        self.holdings = Holdings(self.journal, self.nodes, self.running, changes)
        self.deleted_jobs = DeletedJobs(self.journal, self.holdings, self.tree)
        self.foreign_pods = ForeignPods(
            self.journal, self.nodes, self.deleted_jobs, freed=changes.free_node, filled=changes.fill_node
        )
        self.claims = ClaimTable(self.journal, self.entries, self.holdings, changes, self.running, self.victims)
        self.lanes = Lanes(self.journal, self.entries, self.claims, changes)
        self.elastic = ElasticJobs(self.journal)
        # Of the last decide:
        self.next_reserving_at: datetime | None = None
        self.reserve_after_s = 0.0
        self.plan: tuple[Reservation, ...] = ()
        """The reservations that it left in force, in order."""
        self.costs: dict[Key, Cost] = {}
        self.past_costs: dict[Key, Cost] = {}
        """Of waiting jobs for whose sake nothing is idle now: they change by nothing but a reservation of their own, so
        that no decide goes through them."""
        self.counted_at: datetime | None = None
        self.spent_at: datetime | None = None
        """When the next budget is spent."""
        self.preempt_at: datetime | None = None
        """When the next claim is given up, or the next job may be preempted."""

    def fork(self) -> SchedulerState:
        """A state like this one, of its own from here on. Cost: O(jobs), O(nodes); see `fork`."""
        return fork(self)

    # -- nodes and queues

    def observe_node(self, node: GPUNode) -> None:
        if self.nodes.put(node) is not None:
            self._turn_node(node.metadata.name)

    def forget_node(self, name: str) -> None:
        if name in self.nodes.slots:
            self.nodes.drop(name)
            self._turn_node(name)  # a reservation or a claim may have stood on it

    def observe_queue(self, queue: Queue) -> None:
        self._set_queue(queue.metadata.name, queue)

    def forget_queue(self, name: str) -> None:
        if name in self.queues:
            self._set_queue(name, None)
            self.tree.sweep(self.queues[name])

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
        self.claims.victim_moved(key)
        if old is not None and _is_no_news(job, old):
            return
        unrecorded = old is not None and old.unrecorded and _is_same_attempt(job, old)
        entry = new_entry(job, self.tree.named(job.spec.queue), self.runtimes.of(job), unrecorded=unrecorded)
        if old is not None:
            entry.share_key(old)
        if old is None or not _asks_as(entry, old):
            self._replace(entry, old)
        elif entry.claim is not None and self.claims.stays(entry, old):
            self.claims.replace(entry, old)
        elif not entry.pending and old.workers_on and old.workers_on == workers_on(entry.room):
            self._go_on(entry, old)
        else:
            self._replace(entry, old)

    def forget_job(self, key: Key) -> None:
        entry = self.entries.get(key)
        if entry is not None:
            self.claims.victim_moved(key)
            self.foreign_pods.leave(entry)
            self._remove(entry)
            self.journal.drop(self.entries, key)
            self.journal.drop(self.past_costs, key)
            self.elastic.forget(key)
            self._recount(key)
            self.tree.sweep(entry.queue)
            self.runtimes.sweep(entry.runtime)

    def stick(self, key: Key) -> None:
        """Until its next version it is not asked to grow."""
        self.journal.set(self.entries[key], "stuck", True)

    def count_by_pods(self, job: TrainingJob) -> None:
        """That its attempt stops, or has ended, can't be written: from now on its pods alone say what it holds."""
        old = self.entries.get(job.key)
        if old is None or old.unrecorded or not _is_same_attempt(job, old):
            return
        self.claims.victim_moved(old.key)
        entry = new_entry(old.job, old.queue, old.runtime, unrecorded=True)
        entry.share_key(old)
        self._replace(entry, old)

    # -- assumptions

    def assume(self, entry: Entry, placement: tuple[Placed, ...], gpu_type: str) -> None:
        """Count a decided start, until observe_job shows what became of it or `drop_assumption`."""
        claim = entry.claim
        is_held = claim is not None and (claim.placement, entry.gpu_type) == (placement, gpu_type)
        if is_held:
            self.claims.drop(entry, stays=True)
        self.lanes.drop(entry)
        self.journal.assign(entry, claim=None, pending=False, assumed=placement, gpu_type=gpu_type)
        self._size(entry)
        if not is_held:
            self.holdings.hold((entry,), (placement,))
        self._recount(entry.key)

    def drop_assumption(self, key: Key) -> None:
        """The start was not written: the job is pending again, where it was. No assumption: nothing happens."""
        entry = self.entries.get(key)
        if entry is not None and entry.assumed:
            self.holdings.unhold(entry)
            claim = entry.job.status.claim
            gpu_type = "" if claim is None else claim.gpu_type
            self.journal.assign(entry, claim=claim, pending=True, assumed=(), gpu_type=gpu_type)
            self._size(entry)
            self.lanes.put(entry)
            self._recount(key)

    def claim(self, lane: Lane, found: Sequence[tuple[Entry, Claim]]) -> None:
        """Count what was decided that the lane's first jobs claim, until observe_job shows what became of it."""
        entries = [entry for entry, _ in found]
        self.lanes.take(lane, entries)
        by_type: dict[str, list[Entry]] = {}
        for entry, claim in found:
            self.journal.assign(entry, claim=claim, claim_decided=True, gpu_type=claim.gpu_type)
            self._size(entry)
            by_type.setdefault(claim.gpu_type, []).append(entry)
        self.journal.put_all(self.claims.unwritten, dict.fromkeys([entry.key for entry in entries]))
        for some in by_type.values():
            self.claims.put(some, found[0][1].since)

    def end_claim(self, entry: Entry) -> None:
        """Count the end of a pending job's claim, until observe_job shows what became of it."""
        self.lanes.leave(entry)
        self.journal.assign(entry, claim=None, claim_decided=True, gpu_type="")
        self.journal.put(self.claims.unwritten, entry.key, None)
        self._size(entry)
        self.lanes.enter(entry)

    def grow(self, entry: Entry, claim: Claim) -> None:
        """Count the room in which an elastic job is to go on, beside what it holds, until observe_job shows what became
        of it."""
        self.journal.assign(entry, claim=claim, claim_decided=True)
        self.journal.put(self.claims.unwritten, entry.key, None)
        self.move(entry, claim.placement)

    def vacate(self, key: Key) -> None:
        """In a what-if: as if the job had ended, if it runs."""
        entry = self.entries.get(key)
        if entry is not None and not entry.pending:
            self.holdings.unhold(entry)

    def give_way(self, key: Key) -> None:
        """In a what-if: as if a job that is stopped for a claim had ended, or gone on with what it keeps."""
        entry, victim = self.entries.get(key), self.claims.keeps.get(key)
        if victim is None:
            self.vacate(key)
        elif entry is not None and not entry.pending and entry.attempt == victim.attempt:
            self.move(entry, victim.keeps)

    def move(self, entry: Entry, placement: tuple[Placed, ...]) -> None:
        """In a what-if: as if its workers were there."""
        self.holdings.unhold(entry)
        self.journal.set(entry, "request", entry.request.sized(len(placement)))
        self.holdings.hold((entry,), (placement,))

    def wrote(self, key: Key, record: ReservationCost) -> None:
        """The job's status says so now."""
        cost = self.costs.get(key)
        if cost is not None:
            self.journal.put(self.costs, key, cost._replace(written=record))

    # -- what-if

    def checkpoint(self) -> int:
        return self.journal.checkpoint()

    def rollback(self, mark: int) -> None:
        """Take back every change since the mark, decisions included. Marks nest; each is rolled back once."""
        self.journal.rollback(mark)

    def what_if(self) -> AbstractContextManager[None]:
        return self.journal.what_if()

    # -- inside

    def _go_on(self, entry: Entry, old: Entry) -> None:
        """The usual answer to an assumed start, and every progress report: nothing moves."""
        queue, job = entry.queue, entry.job
        self.journal.set(entry, "workers_on", old.workers_on)
        self.journal.put(self.entries, entry.key, entry)
        self.journal.drop(self.past_costs, entry.key)
        self.running.note((entry.key,))
        for name in entry.workers_on:
            self.nodes.mark_moved(name)
        has_saved = queue.las and queue.filed and loss_of(entry) != loss_of(old)
        if has_saved or self._yields_more(entry, old):
            self.journal.set(self, "preempt_at", EARLIEST)
        if job.spec.elastic is not None and (job.status, job.spec) != (old.job.status, old.job.spec):
            self.elastic.note(entry)
        if job.status.started_at != old.job.status.started_at and queue.preemption.min_runtime is not None:
            self.changes.shift()  # from now on its time counts
        self._recount(entry.key)

    def _yields_more(self, entry: Entry, old: Entry) -> bool:
        """It may be stopped now, and for jobs that wait it was not before."""
        if not may_be_stopped(entry) or (may_be_stopped(old) and entry.order[0] <= old.order[0]):
            return False
        return any(self.queues[name].may_preempt for name in self.lanes.waiters.heads)

    def _replace(self, entry: Entry, old: Entry | None) -> None:
        self.nodes.acquire(entry.request)
        if old is not None:
            is_going = entry.unrecorded or entry.job.metadata.deletion_timestamp is not None
            if is_going or entry.job.uid != old.job.uid:
                self.foreign_pods.leave(old)
            self._remove(old)
        self.journal.put(self.entries, entry.key, entry)
        self.journal.put(entry.runtime.users, entry.key, None)
        if entry.pending:
            self.lanes.put(entry)
        else:
            self.journal.drop(self.past_costs, entry.key)
            self.holdings.hold((entry,), (entry.room,))
        for name in entry.workers_on:
            self.changes.fill_node(name)
        self.elastic.note(entry)
        self._recount(entry.key)
        if old is not None:
            self.tree.sweep(old.queue)
            self.runtimes.sweep(old.runtime)
        self.tree.sweep(entry.queue)

    def _turn_node(self, name: str) -> None:
        self.changes.turn_node(name)
        if not self.nodes.is_alive(name):
            self.deleted_jobs.release_node(name)
        self.running.note(list(self.nodes.claims.get(name, ())))  # their slot may be another one

    def _size(self, entry: Entry) -> None:
        """Of an elastic job: what it asks for follows from where it is, or is to be."""
        if entry.job.spec.elastic is not None:
            self.journal.set(entry, "request", request_now(entry.job, entry.runtime, entry.room))

    def _set_queue(self, name: str, queue: Queue | None) -> None:
        change = self.tree.put(name, queue)
        for one in change.unclaimed:
            for key in [key for below in one.subtree() for key in below.holding if key in self.claims.jobs]:
                self.end_claim(self.entries[key])
        for one in change.refiled:
            for entry in list(one.pending.values()):
                self.lanes.drop(entry)
                self.journal.set(entry, "order", new_entry(entry.job, one, entry.runtime).order)
                self.lanes.put(entry)

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
        request = request_now(entry.job, entry.runtime, entry.room)
        if entry.pending:
            self.lanes.drop(entry)
        for name in entry.workers_on:
            self.nodes.unclaim(name, entry.key)
            self.changes.free_node(name)
        self.nodes.acquire(request)
        self.nodes.release(entry.request)
        self.journal.set(entry, "request", request)
        self.nodes.claim(entry.held, [(name, entry.key, workers) for name, workers in entry.workers_on.items()])
        if entry.key in self.elastic.placed:
            self.elastic.note(entry)
        if entry.pending:
            self.lanes.put(entry)

    def _recount(self, key: Key) -> None:
        if key in self.foreign_pods.of_job:
            self.foreign_pods.recount(key, self.entries.get(key))

    def _remove(self, entry: Entry) -> None:
        if entry.pending:
            self.lanes.drop(entry)
        self.holdings.unhold(entry)
        self.nodes.release(entry.request)
        self.journal.drop(entry.runtime.users, entry.key)


def _asks_as(entry: Entry, old: Entry) -> bool:
    """For the same, in the same queue and runtime."""
    same = entry.queue is old.queue and entry.runtime is old.runtime and entry.request == old.request
    return same and entry.gpu_type == old.gpu_type


def _is_same_attempt(job: TrainingJob, old: Entry) -> bool:
    """The entry's, which is placed."""
    attempt = job.uid, job.status.attempt
    return bool(job.status.placement) and attempt == (old.job.uid, old.job.status.attempt) and not old.pending


def _is_no_news(job: TrainingJob, old: Entry) -> bool:
    """It is as it was, or no answer to what was decided on."""
    if job.metadata.resource_version == old.job.metadata.resource_version and job == old.job:
        return True
    return bool(old.assumed or old.claim_decided) and _is_stale(job, old.job)


def _is_stale(job: TrainingJob, decided_on: TrainingJob) -> bool:
    """`job` can't know of the start that was decided on `decided_on`: the same object, not newer, without placement."""
    new, old = job.metadata, decided_on.metadata
    if new.uid != old.uid or not is_pending(job):
        return False
    if new.resource_version.isdecimal() and old.resource_version.isdecimal():
        return int(new.resource_version) <= int(old.resource_version)
    return new.resource_version == old.resource_version
