"""How attempts become objects, in either mode: what `jobs.JobReconciler` asks, and its two answers.

Owns the choice of a job's runtime on a cluster; the rendering itself is pure and stands in `render` and `render_kube`.
"""

from __future__ import annotations

from typing import Any, Protocol

from stoker.spec.job import ENDED, TrainingJob
from stoker.spec.kube_pod import CLAIMS, SERVICES
from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.pod import Pod
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec, effective_runtime
from stoker.store.cache import WatchCache

from . import render, render_kube, render_reader, render_volumes
from .render import CannotRender as CannotRender
from .render_kube import ClusterSettings

_BUILT_IN = TrainingRuntimeSpec()


class Renderer(Protocol):
    def pod(self, job: TrainingJob, worker: int) -> Pod:
        """The pod of one worker of the current attempt. Raises: CannotRender."""
        ...

    def beside(self, job: TrainingJob) -> list[tuple[Kind[Any], Resource]]:
        """What must be there before its pods, owned by the job. Raises: CannotRender."""
        ...

    def until_ended(self, job: TrainingJob) -> list[tuple[Kind[Any], Resource]]:
        """What of that is of no use once the job has ended."""
        ...

    def is_ephemeral(self, job: TrainingJob) -> bool:
        """Its checkpoints die with its pods."""
        ...

    def keeps_data(self, job: TrainingJob) -> bool:
        """What it names by url is fetched into a cache, not by each of its workers for itself."""
        ...

    def reader(self, job: TrainingJob) -> Pod | None:
        """The pod that reads what it has left; None: there is nothing that a pod could read. Raises: CannotRender."""
        ...


def source_of(job: TrainingJob, jobs: WatchCache[TrainingJob]) -> TrainingJob | None:
    """The job whose weights or checkpoint this one begins with; None: it names none, or needs it no more.

    Raises: CannotRender where the first attempt can't have it. Later ones go on from what the job itself has saved; one
    that has nothing fails in its worker.
    """
    name = job.spec.source_job
    if name is None:
        return None
    source = jobs.get(Key(job.metadata.namespace, name))
    if job.status.attempt > 1:
        return source
    if source is None:
        raise CannotRender(f"there is no job {name} in project {job.metadata.namespace} to begin with")
    if source.status.phase not in ENDED:
        raise CannotRender(f"job {name}, which this one begins with, has not ended")
    return source


class LocalRenderer:
    """One machine: the node agent makes the rest of a worker."""

    def __init__(self, jobs: WatchCache[TrainingJob]) -> None:
        self._jobs = jobs

    def pod(self, job: TrainingJob, worker: int) -> Pod:
        return render.render_pod(job, worker, source_of(job, self._jobs))

    def beside(self, _job: TrainingJob) -> list[tuple[Kind[Any], Resource]]:
        return []

    def until_ended(self, _job: TrainingJob) -> list[tuple[Kind[Any], Resource]]:
        return []

    def is_ephemeral(self, _job: TrainingJob) -> bool:
        return False

    def keeps_data(self, _job: TrainingJob) -> bool:
        return True

    def reader(self, _job: TrainingJob) -> Pod | None:
        return None  # the api reads the data folder


class ClusterRenderer:
    """A cluster: full pods after the administrator's TrainingRuntimes."""

    def __init__(
        self,
        jobs: WatchCache[TrainingJob],
        runtimes: WatchCache[TrainingRuntime],
        settings: ClusterSettings,
    ) -> None:
        self._jobs, self._runtimes = jobs, runtimes
        self._settings = settings

    def pod(self, job: TrainingJob, worker: int) -> Pod:
        return render_kube.render_pod(job, worker, self._runtime(job), self._settings, self._source(job))

    def beside(self, job: TrainingJob) -> list[tuple[Kind[Any], Resource]]:
        claim = render_volumes.checkpoint_claim(job, self._runtime(job))
        return self.until_ended(job) + ([(CLAIMS, claim)] if claim is not None else [])

    def until_ended(self, job: TrainingJob) -> list[tuple[Kind[Any], Resource]]:
        service = render_kube.render_service(job)
        return [(SERVICES, service)] if service is not None else []

    def is_ephemeral(self, job: TrainingJob) -> bool:
        try:
            return render_volumes.is_ephemeral(job, self._runtime(job))
        except CannotRender:
            return False

    def keeps_data(self, job: TrainingJob) -> bool:
        try:
            return self._runtime(job).cache is not None
        except CannotRender:
            return True

    def reader(self, job: TrainingJob) -> Pod | None:
        runtime = self._runtime(job)
        claim = render_volumes.claim_of(job, runtime)
        return None if claim is None else render_reader.render_reader(job, claim, runtime, self._settings)

    def _source(self, job: TrainingJob) -> render_volumes.Source | None:
        source = source_of(job, self._jobs)
        if source is None:
            return None
        try:
            claim = render_volumes.claim_of(source, self._runtime(source))
        except CannotRender:
            if job.status.attempt > 1:
                return None
            raise
        if claim is not None:
            return render_volumes.Source(claim, source.uid)
        if job.status.attempt > 1:
            return None
        name = source.metadata.name
        raise CannotRender(f"job {name} kept nothing: its checkpoints and output were deleted with its pods")

    def _runtime(self, job: TrainingJob) -> TrainingRuntimeSpec:
        project = job.metadata.namespace
        name = effective_runtime(job.spec.runtime, project, self._runtimes.values())
        runtime = self._runtimes.get(Key("", name))
        if runtime is None:
            if job.spec.runtime is None:
                return _BUILT_IN
            raise CannotRender(f"there is no TrainingRuntime {name}")
        projects = runtime.spec.projects
        if projects is not None and project not in projects:
            raise CannotRender(f"TrainingRuntime {name} is not for project {project}")
        return runtime.spec
