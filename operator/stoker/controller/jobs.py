"""Reconciles one job at a time by its key: reads it and its pods, asks `lifecycle.step`, does what it says.

Level-triggered and crash-only: nothing is remembered between two calls; status is written, fenced by its
resourceVersion, before any pod is touched (docs/architecture.md, Write order). Called by `operator.Operator`'s workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from stoker.life import lifecycle
from stoker.life.files_reader import reader_step
from stoker.life.gpu_moves import held_back, moved_for
from stoker.life.pod_end import EARLIEST
from stoker.life.preemption import preempted_as, preempted_message, shrunk_message, victim_of
from stoker.life.start_holdup import without_volumes
from stoker.life.step import Facts, Note, Settings, Step
from stoker.spec.job import ENDED, JOBS, PLACED, Phase, TrainingJob
from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.node import GPUNode
from stoker.spec.pod import PODS, Pod
from stoker.spec.worker_pod import concerned_jobs, identity, is_ours, is_reader, owner_uid, owning_job
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, NotPermitted, Store

from .admission import Admission
from .counters import Counters
from .failed_mounts import failed_mounts
from .recorder import Recorder
from .renderers import CannotRender, LocalRenderer, Renderer
from .status_writes import write_status

T = TypeVar("T", bound=Resource)

PODS_BY_JOB = "job"
# A job moves through at most a few statuses at one moment (Stopping, ended); more would be a loop of our own.
_MOST_STEPS = 8
# How long one's own write may take to come back by the watch; then the job is looked at again from the start.
SIGHT_S = 60.0
READER_GRACE_S = 5
# How soon a name that another has is tried again, and a kubelet's events are read.
_LOOK_S = 2.0
MOUNTED_S = 10.0
"""How long after its placement a gang's volumes are mounted, as a rule: nothing is asked before."""


def job_of(pod: Pod) -> list[Key]:
    """The jobs that see to a pod: the index PODS_BY_JOB."""
    return concerned_jobs(pod.metadata)


class JobReconciler:
    """Carries out lifecycle steps against a store."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        pods: WatchCache[Pod],
        nodes: WatchCache[GPUNode],
        recorder: Recorder,
        clock: Clock,
        settings: Settings,
        admission: Admission,
        claimants: Callable[[Key], Collection[TrainingJob]],
        stopped_unrecorded: Callable[[TrainingJob], None],
        renderer: Renderer | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`claimants`: the jobs that have this one stopped. `stopped_unrecorded`: is called with a job whose attempt is
        stopped, or has ended, though the store takes no status that says so. `renderer`: how attempts become pods;
        absent: for the node agent."""
        self._store = store
        self._jobs = jobs
        self._pods = pods
        self._nodes = nodes
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._admission = admission
        self._claimants = claimants
        self._stopped_unrecorded = stopped_unrecorded
        self._renderer = renderer or LocalRenderer(jobs)
        self._counters = counters or Counters()

    async def reconcile(self, key: Key) -> datetime | None:
        """Bring one job as far as it goes now. Returns when to look again though nothing changed.

        Raises: Conflict when the cache was behind (call again), StoreError.
        """
        refused = name_taken = ""
        has_ended = False
        for _ in range(_MOST_STEPS):
            job = self._jobs.get(key)
            mine, readers, others = self._split(key, job)
            # First, since they stand in the way of new ones of the same names.
            left = lifecycle.orphans(others, self._clock.now(), self._settings, self._facts(others))
            await self._touch_pods(left)
            if job is None:
                return left.wake_at
            now, unmounted = self._clock.now(), without_volumes(job, mine)
            late = unmounted if _waited_s(job, now) >= MOUNTED_S else []
            facts = replace(
                self._facts(mine),
                ephemeral=self._renderer.is_ephemeral(job),
                keeps_data=self._renderer.keeps_data(job),
                refused=refused,
                name_taken=name_taken,
                failed_mounts=await failed_mounts(self._store, job, late, now),
                queue_ttl_s=self._admission.queue_ttl_s(job),
                resources=self._admission.resources(job),
                barred_by=self._admission.blocker(job),
                **self._moved(job),
                **self._preempted(job),
            )
            step = lifecycle.step(job, mine, self._clock.now(), self._settings, facts)
            if step.status is not None:
                await self._write(job, mine, step)
                has_ended = step.status.phase in ENDED
                continue
            refused, found = await self._create(job, step)
            if refused or found != name_taken:
                name_taken = found
                continue
            # Before its pods are released, for they remind the next operator; what a death between these two lines and
            # the status of a job without pods leaves goes with the job.
            if has_ended or (job.status.phase in ENDED and step.release):
                await _all(self._remove_beside(kind, obj.key, job) for kind, obj in self._renderer.until_ended(job))
            await self._touch_pods(step)
            if step.expire:
                await self._expire(job)
            look_at = _look_again_at(job, self._clock.now()) if name_taken or unmounted else None
            read_at = await self._see_to_reader(job, readers)
            return min((at for at in (step.wake_at, left.wake_at, look_at, read_at) if at is not None), default=None)
        raise Conflict(f"{key} did not settle in {_MOST_STEPS} steps")

    def _split(self, key: Key, job: TrainingJob | None) -> tuple[list[Pod], list[Pod], list[Pod]]:
        """The workers of this job, the pod that reads its files, and those of no job any more: of a former one of its
        name, or without an owner."""
        mine: list[Pod] = []
        readers: list[Pod] = []
        others: list[Pod] = []
        for pod in self._pods.by_index(PODS_BY_JOB, key):
            worker = identity(pod.metadata)
            if job is not None and worker is not None and worker.job_uid == job.uid:
                mine.append(pod)
            elif job is not None and is_reader(pod.metadata) and owner_uid(pod.metadata) == job.uid:
                readers.append(pod)
            elif is_ours(pod.metadata):
                others.append(pod)
        return mine, readers, others

    async def _see_to_reader(self, job: TrainingJob, readers: list[Pod]) -> datetime | None:
        """Have a pod read the job's files where that is asked for. What keeps it from it is an event, no error."""
        step = reader_step(job, readers, self._clock.now())
        await _all(self._delete(pod, READER_GRACE_S) for pod in step.remove)
        if not step.create:
            return step.wake_at
        try:
            pod = self._renderer.reader(job)
            if pod is not None:
                await self._store.create(PODS, pod)
        except NotPermitted:
            raise  # our own account, as above
        except (CannotRender, Invalid, Forbidden) as error:
            message = f"no pod can read its files: {error}"[:1000]
            self._recorder.record(job, Note("FilesUnreadable", message, warning=True))
        except AlreadyExists:
            pass  # ours, not seen yet; or another's, which the api says in its answer
        return step.wake_at

    def _preempted(self, job: TrainingJob) -> dict[str, Any]:
        """The facts about a claim that stops the attempt that is under way, or has it go on with fewer workers."""
        for claimant in self._claimants(job.key):
            victim = victim_of(job, claimant)
            if victim is not None:
                keeps = victim.keeps
                message = shrunk_message(job, len(keeps), claimant) if keeps else preempted_message(claimant)
                return {"preempted_for": message, "preempted_as": preempted_as(job, claimant), "keeps": keeps}
        return {}

    def _moved(self, job: TrainingJob) -> dict[str, Any]:
        """Of its facts: whether it is to go on elsewhere."""
        names = {placed.node for placed in job.status.placement}
        nodes = [node for name in sorted(names) if (node := self._nodes.get(Key("", name))) is not None]
        sick = ((node.metadata.name, gpu) for node in nodes for gpu in node.status.sick)
        why = moved_for(job, sick, self._settings.moves)
        if why or not self._settings.blame_s:  # without blame it would come back to the same node
            return {"moved_for": why}
        blamed = ((node.metadata.name, gpu) for node in nodes for gpu in node.status.blamed)
        avoids, why = held_back(job, blamed, self._settings.moves)
        return {"moved_for": why, "avoids": avoids}

    def _facts(self, pods: Iterable[Pod]) -> Facts:
        lost = {}
        for name in {pod.spec.node_name for pod in pods if pod.spec.node_name and not pod.ended}:
            node = self._nodes.get(Key("", name))
            since = EARLIEST if node is None else node.status.lost_since
            if since is not None:
                lost[name] = since
        return Facts(lost=lost)

    async def _write(self, job: TrainingJob, pods: Collection[Pod], step: Step) -> None:
        assert step.status is not None
        try:
            version = await write_status(self._store, job, step.status)
        except Invalid as error:
            if job.status.phase in PLACED and step.status.phase not in (Phase.STARTING, Phase.RUNNING):
                await self._stop_unrecorded(job, pods, error)
            raise
        except NotFound as error:
            raise Conflict(f"job {job.key} was there a moment ago") from error
        self._counters.written(job, step.status, self._clock.now())
        for note in (step.before, step.note):
            if note is not None:
                self._recorder.record(job, note)
        await self._jobs.at_least(version, timeout_s=SIGHT_S)

    async def _stop_unrecorded(self, job: TrainingJob, pods: Collection[Pod], error: Invalid) -> None:
        """Its pods go though its status can't say so: its owner may have made it as large as an object can be, so that
        it could never be stopped."""
        stop = tuple(pod for pod in pods if not pod.ended and pod.metadata.deletion_timestamp is None)
        if stop:
            message = f"its status can't be written ({error}); its workers are stopped without"
            self._recorder.record(job, Note("StatusRefused", message[:1000], warning=True))
        await self._touch_pods(Step(stop=stop))
        self._stopped_unrecorded(job)

    async def _create(self, job: TrainingJob, step: Step) -> tuple[str, str]:
        """Create missing pods. One of our own that the cache has not seen yet is as good as created.

        Returns: the store's message if one was refused for good; what of another's is in the way. "": none.
        """
        if not step.create:
            return "", ""
        try:
            await _all(self._create_beside(kind, obj, job) for kind, obj in self._renderer.beside(job))
            await _all(self._create_pod(job, worker) for worker in step.create)
        except NotPermitted:
            raise  # our own account, no fault of the job's: an API server that starts answers so, too
        except (CannotRender, Invalid, Forbidden) as error:
            return str(error) or type(error).__name__, ""
        except _NameTaken as error:
            return "", str(error)
        return "", ""

    async def _create_beside(self, kind: Kind[Any], obj: Resource, job: TrainingJob) -> None:
        try:
            await self._store.create(kind, obj)
        except AlreadyExists:
            _owned(await self._there(kind, obj.key), job)

    async def _remove_beside(self, kind: Kind[Any], key: Key, job: TrainingJob) -> None:
        try:
            there = await self._store.get(kind, key)
            owner = owning_job(there.metadata)
            if owner is not None and owner.uid == job.uid:
                await self._store.delete(kind, key, uid=there.uid)
        except NotFound:
            pass

    async def _create_pod(self, job: TrainingJob, worker: int) -> None:
        pod = self._renderer.pod(job, worker)
        try:
            there = await self._store.create(PODS, pod)
        except AlreadyExists:
            there = await self._there(PODS, pod.key)
            _owned(there, job)
        # Before this job is looked at again its pods must be in sight: an attempt that seems to have no pods would be
        # taken for ended.
        await self._pods.at_least(there.metadata.resource_version, timeout_s=SIGHT_S)

    async def _there(self, kind: Kind[T], key: Key) -> T:
        """What was said to exist. Raises: Conflict: not any more."""
        try:
            return await self._store.get(kind, key)
        except NotFound as error:
            raise Conflict(f"{kind} {key} was there a moment ago") from error

    async def _touch_pods(self, step: Step) -> None:
        await _all(self._delete(pod, pod.spec.termination_grace_period_seconds) for pod in step.stop)
        await _all(self._release(pod) for pod in step.release)
        await _all(self._delete(pod, 0) for pod in step.discard)
        # Else this job's next look, at the versions before, would ask for the same again, in vain.
        touched = (*step.stop, *step.release, *step.discard)
        await self._pods.wait_for(lambda pods: all(_has_moved(pods, pod) for pod in touched), timeout_s=SIGHT_S)

    async def _delete(self, pod: Pod, grace: int) -> None:
        try:
            await self._store.delete(PODS, pod.key, uid=pod.uid, grace_s=grace)
        except NotFound:
            pass  # gone; a conflict (another pod under its name, or a change that came between) is looked at anew

    async def _release(self, pod: Pod) -> None:
        kept = tuple(name for name in pod.metadata.finalizers if name != FINALIZER_OUTCOME)
        freed = pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"finalizers": kept})})
        try:
            await self._store.update(PODS, freed)
        except NotFound:
            pass

    async def _expire(self, job: TrainingJob) -> None:
        try:
            await self._store.delete(JOBS, job.key, uid=job.uid)
        except NotFound:
            pass


def _has_moved(pods: WatchCache[Pod], pod: Pod) -> bool:
    there = pods.get(pod.key)
    return there is None or there.metadata.resource_version != pod.metadata.resource_version


class _NameTaken(Exception):
    """A name that the job needs is taken, until its owner frees it."""


def _owned(there: Resource, job: TrainingJob) -> None:
    """Raises: _NameTaken if the object is not of our making; Conflict if it is a former job's, or on its way out."""
    owner = owning_job(there.metadata)
    if owner is None and there.metadata.deletion_timestamp is None and not is_ours(there.metadata):
        what, name = there.kind, there.metadata.name
        command = f"kubectl -n {there.metadata.namespace} delete {what.lower()} {name}"
        problem = f"there is a {what} {name} already that is not of this job"
        raise _NameTaken(f"{problem}; it starts as soon as that is removed ({command})")
    if owner is None or owner.uid != job.uid:
        raise Conflict(f"a {there.kind} named {there.key} of another owner is in the way; waiting for it to go")


def _look_again_at(job: TrainingJob, now: datetime) -> datetime:
    """Pods that change wake us, Services, claims and kubelets' events don't: they are looked for, the less often the
    longer it has lasted."""
    return now + timedelta(seconds=min(max(_LOOK_S, _waited_s(job, now) / 10), 10 * _LOOK_S))


def _waited_s(job: TrainingJob, now: datetime) -> float:
    return (now - (job.status.placed_at or now)).total_seconds()


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Await every call even if one fails, then raise the first failure: one bad pod never stops the others."""
    calls = list(calls)
    if len(calls) <= 1:
        for call in calls:
            await call
        return
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    del outcomes, failures[1:]
    if failures:
        raise failures.pop()  # nothing of this frame holds it: a ring would keep the whole reconcile in memory
