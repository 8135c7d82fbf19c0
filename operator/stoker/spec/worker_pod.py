"""The job of a pod: by its name and its controller, which tenants can't forge for a pod that is there already.

Owns that rule. A pod's labels are anybody's who may edit pods: they are for people, Services and Prometheus, and decide
nothing. Pure; called wherever a pod's job is asked for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .job import JOBS
from .meta import Key, ObjectMeta, OwnerReference
from .names import FINALIZER_OUTCOME, GROUP

# Canonical numbers only, so that a worker has one name.
_NAME = re.compile(r"(.+)-(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})")


class WorkerName(NamedTuple):
    """The parts of a worker pod's name, `<job>-<attempt>-<worker>`."""

    job: str
    attempt: int
    worker: int

    def __str__(self) -> str:
        return f"{self.job}-{self.attempt}-{self.worker}"


class WorkerIdentity(NamedTuple):
    """Which worker of which job."""

    project: str
    job_name: str
    job_uid: str
    attempt: int
    worker: int


def worker_name(pod: str) -> WorkerName | None:
    """None: no worker's pod is called so."""
    match = _NAME.fullmatch(pod)
    return WorkerName(match[1], int(match[2]), int(match[3])) if match else None


def owning_job(meta: ObjectMeta) -> OwnerReference | None:
    """The TrainingJob that controls the object."""
    for owner in meta.owner_references:
        if owner.controller and owner.kind == JOBS.kind and owner.api_version.startswith(f"{GROUP}/"):
            return owner
    return None


def owner_uid(meta: ObjectMeta) -> str:
    """The uid of the TrainingJob that controls the object; '': none does."""
    owner = owning_job(meta)
    return "" if owner is None else owner.uid


def identity(meta: ObjectMeta) -> WorkerIdentity | None:
    """The worker that a pod is, or was; None: it is no job's, whatever its labels say."""
    name, owner = worker_name(meta.name), owning_job(meta)
    if name is None or owner is None or owner.name != name.job:
        return None
    return WorkerIdentity(meta.namespace, name.job, owner.uid, name.attempt, name.worker)


def reader_name(job: str) -> str:
    """What the pod is called that reads a job's files while none of its workers runs. No worker's is called so."""
    return f"{job}-files"


def is_reader(meta: ObjectMeta) -> bool:
    """Whether a pod is that of the job that controls it."""
    owner = owning_job(meta)
    return owner is not None and meta.name == reader_name(owner.name)


def is_ours(meta: ObjectMeta) -> bool:
    """Stoker sees to the pod: a job controls it, or it carries our finalizer, so that only we can let it go."""
    return FINALIZER_OUTCOME in meta.finalizers or owning_job(meta) is not None


def concerned_jobs(meta: ObjectMeta) -> list[Key]:
    """The jobs whose reconcile sees to the pod: its owner, and the one whose worker's name it has.

    Of neither: a name that no job needs to have, for what is ours is let go all the same.
    """
    owner, name = owning_job(meta), worker_name(meta.name)
    names = [found for found in (owner and owner.name, name and name.job) if found]
    if not names and is_ours(meta):
        names = [meta.name]
    return [Key(meta.namespace, found) for found in dict.fromkeys(names)]
