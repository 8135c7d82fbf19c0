"""Which pod a session goes to, or why there is none now. Called by `routes/sessions.py`."""

from __future__ import annotations

from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.worker_pod import identity
from stoker.store.cache import WatchCache
from stoker_api.problems import Code, Problem


def running_pod(pods: WatchCache[Pod], job: TrainingJob, worker: int) -> Pod:
    """The pod of the current attempt's worker, which runs (or is held). Raises: Problem (NotRunning)."""
    name, status = job.metadata.name, job.status
    if job.metadata.deletion_timestamp is not None:
        raise Problem(Code.NOT_RUNNING, f"Job {name!r} is being deleted.")
    key = Key(job.metadata.namespace, f"{name}-{status.attempt}-{worker}")
    pod = pods.get(key) if status.attempt else None
    found = identity(pod.metadata) if pod is not None else None
    if pod is None or found is None or found.job_uid != job.uid:
        raise Problem(Code.NOT_RUNNING, f"Job {name!r} is {status.phase} and has no worker {worker} now. {_hint(job)}")
    if pod.metadata.deletion_timestamp is not None and not pod.ended:
        raise Problem(Code.NOT_RUNNING, f"Worker {worker} of job {name!r} is stopping; the job is {status.phase}.")
    if pod.status.phase is not PodPhase.RUNNING:
        raise Problem(
            Code.NOT_RUNNING,
            f"Worker {worker} of job {name!r} is {pod.status.phase}; the job is {status.phase}. {_hint(job)}",
        )
    return pod


def _hint(job: TrainingJob) -> str:
    if job.status.phase in ENDED:
        return "spec.onFailure.hold keeps a failed worker for a look inside."
    if job.status.phase in (Phase.QUEUED, Phase.SUSPENDED):
        return f"`stoker why {job.metadata.name}` says what it waits for."
    return "Try again when it runs."
