"""Reconciles one job at a time by its key: reads it and its pods, asks `lifecycle.step`, does what it says.

Level-triggered and crash-only (DESIGN §6): nothing is remembered between two calls; status is written, fenced by its
resourceVersion, before any pod is touched. Called by `operator.Operator`'s workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from datetime import datetime

from stoker.sched import lifecycle
from stoker.sched.step import Settings, Step
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import PODS, Pod
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import AlreadyExists, Conflict, NotFound, Store

from .patch import status_patch
from .recorder import Recorder
from .render import grace_s, pod_name, render_pod

MANAGER = "operator"
PODS_BY_JOB = "job"
# A job moves through at most a few statuses at one moment (Stopping, ended); more would be a loop of our own.
_MOST_STEPS = 8


def job_of(pod: Pod) -> list[Key]:
    """The job that owns a pod: the index PODS_BY_JOB."""
    return [
        Key(pod.metadata.namespace, owner.name)
        for owner in pod.metadata.owner_references
        if owner.kind == JOBS.kind and owner.controller
    ]


class JobReconciler:
    """Carries out lifecycle steps against a store."""

    def __init__(
        self,
        store: Store,
        jobs: WatchCache[TrainingJob],
        pods: WatchCache[Pod],
        recorder: Recorder,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._pods = pods
        self._recorder = recorder
        self._clock = clock
        self._settings = settings

    async def reconcile(self, key: Key) -> datetime | None:
        """Bring one job as far as it goes now. Returns when to look again though nothing changed.

        Raises: Conflict when the cache was behind (call again), StoreError.
        """
        for _ in range(_MOST_STEPS):
            job = self._jobs.get(key)
            pods = list(self._pods.by_index(PODS_BY_JOB, key))
            if job is None:
                await self._touch_pods(lifecycle.orphans(pods), grace=30)
                return None
            mine = [pod for pod in pods if pod.metadata.owner_references[0].uid == job.uid]
            step = lifecycle.step(job, mine, self._clock.now(), self._settings)
            if step.status is None:
                await self._create(job, step)
                await self._touch_pods(step, grace=grace_s(job))
                return step.wake_at
            await self._write(job, step)
        raise Conflict(f"{key} did not settle in {_MOST_STEPS} steps")

    async def _write(self, job: TrainingJob, step: Step) -> None:
        assert step.status is not None
        written = await self._store.patch_status(
            JOBS,
            job.key,
            status_patch(job.status, step.status),
            manager=MANAGER,
            uid=job.uid,
            resource_version=job.metadata.resource_version,
        )
        if step.note is not None:
            self._recorder.record(job, step.note)
        await self._jobs.at_least(written.metadata.resource_version)

    async def _create(self, job: TrainingJob, step: Step) -> None:
        """Create missing pods. One of our own that the cache has not seen yet is as good as created."""
        await _all(self._create_pod(job, worker) for worker in step.create)

    async def _create_pod(self, job: TrainingJob, worker: int) -> None:
        try:
            created = await self._store.create(PODS, render_pod(job, worker))
            # Before this job is looked at again its pods must be in sight: an attempt that seems to have no pods
            # would be taken for ended.
            await self._pods.at_least(created.metadata.resource_version)
        except AlreadyExists:
            key = Key(job.metadata.namespace, pod_name(job, worker))
            there = await self._store.get(PODS, key)
            if not any(owner.uid == job.uid for owner in there.metadata.owner_references):
                raise Conflict(f"a pod named {key} of another owner is in the way; waiting for it to go") from None
            await self._pods.at_least(there.metadata.resource_version)

    async def _touch_pods(self, step: Step, *, grace: int) -> None:
        await _all(self._delete(pod, grace) for pod in step.stop)
        await _all(self._release(pod) for pod in step.release)
        await _all(self._delete(pod, 0) for pod in step.discard)

    async def _delete(self, pod: Pod, grace: int) -> None:
        try:
            await self._store.delete(PODS, pod.key, uid=pod.uid, grace_s=grace)
        except (NotFound, Conflict):
            pass  # gone, or another pod under its name: what we meant to delete is not there

    async def _release(self, pod: Pod) -> None:
        kept = tuple(name for name in pod.metadata.finalizers if name != FINALIZER_OUTCOME)
        freed = pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"finalizers": kept})})
        try:
            await self._store.update(PODS, freed)
        except NotFound:
            pass


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Await every call even if one fails, then raise the first failure: one bad pod never stops the others."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
