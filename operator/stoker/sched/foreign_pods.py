"""Pods that take room on nodes besides the placed jobs: foreign pods, and our own that no placement counts.

Owns that bookkeeping. A pod of ours counts here unless its job is placed, under the pod's uid and attempt, with that
worker on that node: then the job's placement counts it, and here only what it asks for beyond. So a former attempt's
pod that is still ending, and one whose job is gone, hold what they hold. Called by `state`. Cost: O(1) per pod, O(its
pods) per change of a job that has any here.

A deleted job's pods, as far as its placement counted them, stay charged to its queue: see `deleted_jobs`. So do those
of a job whose placement has ceased to count although no status says so (`Entry.unrecorded`).
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.spec.meta import Key
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod

from .columns import ForeignClaim, Holder
from .deleted_jobs import DeletedJobs
from .entries import Entry
from .journal import Journal
from .nodes import NodeTable
from .pod_requests import OwnPod, beyond, other_claim, own_pod


class ForeignPods:
    def __init__(
        self,
        journal: Journal,
        nodes: NodeTable,
        deleted: DeletedJobs,
        freed: Callable[[str], None],
        filled: Callable[[str], None],
    ) -> None:
        """`freed`: this node may have more room now; `filled`: it has less."""
        self._journal, self._nodes, self._deleted = journal, nodes, deleted
        self._freed, self._filled = freed, filled
        self.where: dict[Holder, str] = {}
        """Holder -> its node."""
        self.pods: dict[Key, OwnPod] = {}
        self.of_job: dict[Key, dict[Key, None]] = {}
        """Job -> its pods. Only jobs whose pods were observed."""

    def observe_other(self, pod: OtherPod) -> None:
        taken = other_claim(pod) if pod.spec.node_name else None
        self._set(Holder(pod.key, ours=False), pod.spec.node_name, taken)

    def forget_other(self, key: Key) -> None:
        self._set(Holder(key, ours=False), "", None)

    def observe_pod(self, pod: Pod, entry_of: Callable[[Key], Entry | None]) -> None:
        new, key = own_pod(pod), pod.key
        old = self.pods.get(key)
        if new == old:
            return
        if new is None:
            self.forget_pod(key)
            return
        if old is not None and old.worker != new.worker:
            self._deleted.release(key)
        self._unlink(key)
        self._journal.put(self.pods, key, new)
        job = _job(key, new)
        if job not in self.of_job:
            self._journal.put(self.of_job, job, {})
        self._journal.put(self.of_job[job], key, None)
        self._count(key, new, entry_of(job))

    def forget_pod(self, key: Key) -> None:
        self._deleted.release(key)
        self._unlink(key)
        self._set(Holder(key, ours=True), "", None)

    def recount(self, job: Key, entry: Entry | None) -> None:
        """The job has come, changed or gone."""
        for key in self.of_job.get(job, ()):
            self._count(key, self.pods[key], entry)

    def leave(self, entry: Entry) -> None:
        """The job, which still has its place, is deleted, or that ceases to count."""
        for key in self.of_job.get(entry.key, ()):
            pod = self.pods[key]
            if _is_placed(pod, entry) and self._nodes.is_alive(pod.node):
                self._deleted.charge(key, pod.node, entry)

    def _unlink(self, key: Key) -> None:
        old = self.pods.get(key)
        if old is None:
            return
        self._journal.drop(self.pods, key)
        job = _job(key, old)
        self._journal.drop(self.of_job[job], key)
        if not self.of_job[job]:
            self._journal.drop(self.of_job, job)

    def _count(self, key: Key, pod: OwnPod, entry: Entry | None) -> None:
        counted = entry is not None and _is_placed(pod, entry)
        if counted:
            self._deleted.release(key)
        taken = beyond(pod.taken, entry.request) if counted and entry is not None else pod.taken
        self._set(Holder(key, ours=True), pod.node, taken)

    def _set(self, holder: Holder, node: str, taken: ForeignClaim | None) -> None:
        before = self.where.get(holder)
        if before is not None:
            if before == node and self._nodes.others[before][holder] == taken:
                return
            self._nodes.give_back(before, holder)
            self._journal.drop(self.where, holder)
            self._freed(before)
        if taken is not None:
            self._nodes.take(node, holder, taken)
            self._journal.put(self.where, holder, node)
            self._filled(node)


def _is_placed(pod: OwnPod, entry: Entry) -> bool:
    """At most one pod is this worker: its name says which it is."""
    named = pod.worker
    if (
        named is None
        or (entry.job.uid, entry.attempt) != (named.job_uid, named.attempt)
        or pod.node not in entry.workers_on
    ):
        return False
    placement, at = entry.placement, named.worker
    return at < len(placement) and (placement[at].worker, placement[at].node) == (at, pod.node)


def _job(key: Key, pod: OwnPod) -> Key:
    """The job whose placement may count the pod; for a pod of no job, a key that matches none."""
    return Key(key.namespace, pod.worker.job_name if pod.worker is not None else "")
