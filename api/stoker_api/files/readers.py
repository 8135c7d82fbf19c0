"""Pods that read jobs' files while none of their workers runs: asked of the operator by an annotation on the job.

Owns the request and the waiting for the pod, whose life is the operator's (`stoker.life.files_reader`). Called by
`remote.py`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from stoker.life.files_reader import READABLE, wanted_since
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import ANNOTATION_FILES_WANTED
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.worker_pod import is_reader, owner_uid, reader_name
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import Conflict, NotFound, Store
from stoker_api.problems import Problem, ProblemCode, not_found

REQUEST_AGAIN = timedelta(seconds=30)
STARTS_S = 12.0
"""How long a request waits for the pod; then the client is to come again."""


class FileReaders:
    def __init__(self, store: Store, pods: WatchCache[Pod], clock: Clock) -> None:
        self._store, self._pods, self._clock = store, pods, clock

    async def pod(self, job: TrainingJob, claim: str | None) -> Pod:
        """One that runs, made for it if need be. Raises: Problem, StoreError."""
        name = job.metadata.name
        if job.status.phase not in READABLE:
            raise Problem(ProblemCode.NOT_RUNNING, f"Job {name!r} is {job.status.phase}: none of its workers runs.")
        if claim is None:
            raise Problem(
                ProblemCode.NO_FILE,
                f"What job {name!r} left went with its pods: neither it nor its runtime names a claim for checkpoints.",
            )
        if not job.status.attempt:
            raise Problem(ProblemCode.NO_FILE, f"Job {name!r} has never run.")
        pod = self._running(job)
        if pod is None:
            await self._request(job)
            try:
                await self._pods.wait_for(lambda _: self._running(job) is not None, timeout_s=STARTS_S)
            except TimeoutError:
                pass
            pod = self._running(job)
        if pod is None:
            raise Problem(ProblemCode.UNAVAILABLE, self._not_yet(job), retry_after_s=2)
        return pod

    def _there(self, job: TrainingJob) -> Pod | None:
        pod = self._pods.get(Key(job.metadata.namespace, reader_name(job.metadata.name)))
        return pod if pod is not None and is_reader(pod.metadata) and owner_uid(pod.metadata) == job.uid else None

    def _running(self, job: TrainingJob) -> Pod | None:
        pod = self._there(job)
        if pod is None or pod.metadata.deletion_timestamp is not None or pod.status.phase is not PodPhase.RUNNING:
            return None
        return pod

    def _not_yet(self, job: TrainingJob) -> str:
        name, pod = job.metadata.name, self._there(job)
        why = "" if pod is None else _waits_for(pod)
        return (
            f"The pod that reads the files of job {name!r} does not run yet{f' ({why})' if why else ''}; try again. "
            f"If that stays, `stoker events {name}` says why."
        )

    async def _request(self, job: TrainingJob) -> None:
        """Note on the job that its files are wanted. Raises: Problem, StoreError."""
        for _ in range(3):
            now, asked_at = self._clock.now(), wanted_since(job)
            if asked_at is not None and timedelta(0) <= now - asked_at < REQUEST_AGAIN:
                return
            annotations = {**job.metadata.annotations, ANNOTATION_FILES_WANTED: now.isoformat()}
            metadata = job.metadata.model_copy(update={"annotations": annotations})
            try:
                await self._store.update(JOBS, job.model_copy(update={"metadata": metadata}))
                return
            except Conflict:
                await asyncio.sleep(0.05)
            try:
                job = await self._store.get(JOBS, job.key)
            except NotFound:
                raise not_found(f"job {job.metadata.name!r} in project {job.metadata.namespace!r}") from None


def _waits_for(pod: Pod) -> str:
    """ContainerCreating, ErrImagePull, …"""
    for container in pod.status.container_statuses:
        if container.state.waiting is not None and container.state.waiting.reason:
            return container.state.waiting.reason
    return ""
