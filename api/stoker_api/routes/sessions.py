"""WebSockets: callers who enter a worker (`exec`, `portforward`), and workers that come for them.

All refusals are made before the handshake, as problem documents like everywhere else.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, WebSocket
from pydantic import Field

from stoker_api.access import Access, Caller, access
from stoker_api.identity import EXEC_JOB, FORWARD_JOB, Principal
from stoker_api.problems import Code, Problem, invalid
from stoker_api.services import services
from stoker_api.sessions.opening import ExecOpening, ForwardOpening, Opening
from stoker_api.sessions.rendezvous import SUBPROTOCOL
from stoker_api.sessions.target import running_pod

from .common import Name, Project, QueryModel, find_job

router = APIRouter()


class SessionQuery(QueryModel):
    worker: int = Field(default=0, ge=0, lt=4096)


_Wanted = Annotated[SessionQuery, Query()]


@router.websocket("/v1/projects/{project}/jobs/{name}/exec")
@access(EXEC_JOB)
async def exec_session(socket: WebSocket, caller: Caller, project: Project, name: Name, query: _Wanted) -> None:
    """Run a command in one of the job's workers."""
    await _session(socket, caller, project, name, query, ExecOpening)


@router.websocket("/v1/projects/{project}/jobs/{name}/portforward")
@access(FORWARD_JOB)
async def forward_session(socket: WebSocket, caller: Caller, project: Project, name: Name, query: _Wanted) -> None:
    """Reach a port of one of the job's workers."""
    await _session(socket, caller, project, name, query, ForwardOpening)


@router.websocket("/v1/report/sessions/{session}")
@access(Access.WORKER)
async def worker_session(socket: WebSocket, session: Annotated[str, Path(max_length=64)]) -> None:
    """The worker that was told of a session."""
    found = services(socket)
    _speaks_ours(socket)
    wanted = found.sessions.wanted(session, socket.state.pod_uid)
    if wanted is None:
        raise Problem(Code.NOT_FOUND, "There is no such session, or nobody waits in it any more.")
    await found.rendezvous.worker(socket, wanted)


async def _session(
    socket: WebSocket, caller: Principal, project: str, name: str, query: SessionQuery, model: type[Opening]
) -> None:
    found = services(socket)
    _speaks_ours(socket)
    job = await find_job(found, project, name)
    if query.worker >= job.spec.workers:
        raise invalid("/worker", f"the job has {job.spec.workers} worker(s), counted from 0", place="query")
    pod = running_pod(found.deps.pods, job, query.worker)
    session = found.sessions.create(job, pod, query.worker, caller.name)
    await found.rendezvous.client(socket, session, model)


def _speaks_ours(socket: WebSocket) -> None:
    if SUBPROTOCOL not in socket.scope["subprotocols"]:
        raise Problem(Code.BAD_REQUEST, f"Offer the WebSocket subprotocol {SUBPROTOCOL}; docs/api.md has its messages.")
