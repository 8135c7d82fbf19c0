"""Whether a running worker is still wanted: what `POST /v1/report/alive` answers.

A kubelet that died, or lost its way to the cluster, stops no container: its worker computes on while the job's next
attempt runs elsewhere. Such a worker often still reaches the api, and stops by itself on this answer.

Owns which facts make a worker unwanted. The caches may be old: a fact of theirs counts only if it can't be taken back
(a deletion, an end, a later attempt), and that something is missing counts only if the store itself says so. Never
stops anything itself. Called by `routes/report.py`.
"""

from __future__ import annotations

from typing import TypeVar

from stoker.spec.job import JOBS, PLACED, TrainingJob
from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.pod import PODS, Pod
from stoker.spec.reports import WorkerReport
from stoker.store.port import NotFound, Store
from stoker_api.deps import Deps

T = TypeVar("T", bound=Resource)


def unwanted(pod: Pod | None, job: TrainingJob | None, attempt: int) -> str:
    """Why the worker in `pod`, of this attempt of `job`, is to stop, as far as these two say; "": it is not.

    None: nothing is known of it. A lower attempt in the job's status is an old cache's: attempts only grow, and the
    write that numbers one begins it.
    """
    if pod is not None and pod.metadata.deletion_timestamp is not None:
        return f"its pod {pod.metadata.name} is being deleted"
    if pod is not None and pod.ended:
        return f"its pod {pod.metadata.name} is over for the cluster ({pod.status.phase})"
    if job is None:
        return ""
    status, name = job.status, job.metadata.name
    if job.metadata.deletion_timestamp is not None:
        return f"job {name} is being deleted"
    if status.attempt > attempt:
        return f"attempt {status.attempt} of job {name} has begun; this is attempt {attempt}"
    if status.attempt == attempt and status.phase not in PLACED:
        return f"attempt {attempt} of job {name} is over: the job is {status.phase}"
    return ""


async def why_stop(deps: Deps, report: WorkerReport) -> str:
    """Why the worker that asks is to stop; "": go on.

    Cost: nothing beyond the caches for a worker whose pod and job they hold, else one read each. Raises: StoreError.
    """
    pod, job = deps.pods.by_uid(report.pod_uid), deps.jobs.by_uid(report.job_uid)
    if why := unwanted(pod, job, report.attempt):
        return why
    if job is None:
        job = await _stored(deps.store, JOBS, Key(report.project, report.job_name), report.job_uid)
        if job is None:
            return f"job {report.job_name} is gone"
    if pod is None:
        name = f"{report.job_name}-{report.attempt}-{report.worker}"
        pod = await _stored(deps.store, PODS, Key(report.project, name), report.pod_uid)
        if pod is None:
            return f"its pod {name} is gone"
    return unwanted(pod, job, report.attempt)


async def _stored(store: Store, kind: Kind[T], key: Key, uid: str) -> T | None:
    """The object of this uid, read from the store; None: it is gone."""
    try:
        found = await store.get(kind, key)
    except NotFound:
        return None
    return found if found.uid == uid else None
