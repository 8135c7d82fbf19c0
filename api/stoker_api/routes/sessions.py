"""WebSockets: callers who enter a worker (`exec`, `portforward`), and workers that come for them.

All refusals are made before the handshake, as problem documents like everywhere else.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, WebSocket
from pydantic import Field

from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod, PodPhase
from stoker.spec.worker_pod import identity
from stoker.store.cache import WatchCache
from stoker_api.access import Access, Caller, access
from stoker_api.identity import EXEC_JOB, FORWARD_JOB, Principal
from stoker_api.problems import Problem, ProblemCode, invalid
from stoker_api.services import services
from stoker_api.sessions.first_message import ExecMessage, FirstMessage, ForwardMessage
from stoker_api.sessions.rendezvous import SUBPROTOCOL

from .common import Name, Project, QueryModel, Router, find_job

router = Router()


class SessionQuery(QueryModel):
    worker: int = Field(default=0, ge=0, lt=4096)


_Wanted = Annotated[SessionQuery, Query()]


@router.websocket("/v1/projects/{project}/jobs/{name}/exec")
@access(EXEC_JOB)
async def exec_session(socket: WebSocket, caller: Caller, project: Project, name: Name, query: _Wanted) -> None:
    """Run a command in one of the job's workers."""
    await _session(socket, caller, project, name, query, ExecMessage)


@router.websocket("/v1/projects/{project}/jobs/{name}/portforward")
@access(FORWARD_JOB)
async def forward_session(socket: WebSocket, caller: Caller, project: Project, name: Name, query: _Wanted) -> None:
    """Reach a port of one of the job's workers."""
    await _session(socket, caller, project, name, query, ForwardMessage)


@router.websocket("/v1/report/sessions/{session}")
@access(Access.WORKER)
async def worker_session(socket: WebSocket, session: Annotated[str, Path(max_length=64)]) -> None:
    """The worker that was called to a session."""
    found = services(socket)
    _check_subprotocol(socket)
    wanted = found.sessions.wanted(session, socket.state.pod_uid)
    if wanted is None:
        raise Problem(ProblemCode.NOT_FOUND, "There is no such session, or its client is gone.")
    await found.rendezvous.worker(socket, wanted)


async def _session(
    socket: WebSocket, caller: Principal, project: str, name: str, query: SessionQuery, model: type[FirstMessage]
) -> None:
    found = services(socket)
    _check_subprotocol(socket)
    job = await find_job(found, project, name)
    if query.worker >= job.spec.most_workers:
        raise invalid("/worker", f"the job has {job.spec.most_workers} worker(s), counted from 0", place="query")
    pod = running_pod(found.deps.pods, job, query.worker)
    session = found.sessions.create(job, pod, query.worker, caller.name)
    await found.rendezvous.client(socket, session, model)


def _check_subprotocol(socket: WebSocket) -> None:
    if SUBPROTOCOL not in socket.scope["subprotocols"]:
        raise Problem(
            ProblemCode.BAD_REQUEST, f"Offer the WebSocket subprotocol {SUBPROTOCOL}; docs/api.md has its messages."
        )


def running_pod(pods: WatchCache[Pod], job: TrainingJob, worker: int) -> Pod:
    """The pod of the current attempt's worker, which runs (or is held). Raises: Problem (NotRunning)."""
    name, status = job.metadata.name, job.status
    if job.metadata.deletion_timestamp is not None:
        raise Problem(ProblemCode.NOT_RUNNING, f"Job {name!r} is being deleted.")
    key = Key(job.metadata.namespace, f"{name}-{status.attempt}-{worker}")
    pod = pods.get(key) if status.attempt else None
    found = identity(pod.metadata) if pod is not None else None
    if pod is None or found is None or found.job_uid != job.uid:
        raise Problem(
            ProblemCode.NOT_RUNNING, f"Job {name!r} is {status.phase} and has no worker {worker} now. {_hint(job)}"
        )
    if pod.metadata.deletion_timestamp is not None and not pod.ended:
        raise Problem(
            ProblemCode.NOT_RUNNING, f"Worker {worker} of job {name!r} is stopping; the job is {status.phase}."
        )
    if pod.status.phase is not PodPhase.RUNNING:
        raise Problem(
            ProblemCode.NOT_RUNNING,
            f"Worker {worker} of job {name!r} is {pod.status.phase}; the job is {status.phase}. {_hint(job)}",
        )
    return pod


def _hint(job: TrainingJob) -> str:
    if job.status.phase in ENDED:
        return "spec.onFailure.hold keeps a failed worker for a look inside."
    if job.status.phase in (Phase.QUEUED, Phase.SUSPENDED):
        return f"`stoker why {job.metadata.name}` says what it waits for."
    return "Try again when it runs."
