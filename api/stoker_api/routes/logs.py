"""A worker's log: raw bytes, or lines by resumable SSE."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from stoker_api.access import Caller, access
from stoker_api.identity import GET_JOB
from stoker_api.problems import Problem, ProblemCode, invalid
from stoker_api.services import services
from stoker_api.streams.log_stream import LogRequest, Position
from stoker_api.streams.sse import EVENT_STREAM

from .common import Accept, LogPosition, Name, Project, QueryModel, find_job, wants_events

router = APIRouter(tags=["streams"])
PLAIN = "text/plain"


class LogsQuery(QueryModel):
    worker: int = Field(default=0, ge=0, lt=4096)
    attempt: int | None = Field(default=None, ge=1, lt=2**31, description="Absent: the newest.")
    follow: bool = False
    tail_lines: int | None = Field(default=None, ge=0, le=1_000_000)


@router.get(
    "/v1/projects/{project}/jobs/{name}/logs",
    response_model=None,
    responses={200: {"content": {PLAIN: {}, EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
@access(GET_JOB)
async def job_logs(
    request: Request,
    project: Project,
    name: Name,
    caller: Caller,
    query: Annotated[LogsQuery, Query()],
    accept: Accept = PLAIN,
    last_event_id: LogPosition = None,
) -> Response:
    """`Accept: text/event-stream`: `log` (resumable by id), `attempt`, `end`; else the bytes as they are."""
    found = services(request)
    job = await find_job(found, project, name)
    if query.worker >= job.spec.workers:
        raise invalid("/worker", f"the job has {job.spec.workers} worker(s), counted from 0", place="query")
    wanted = LogRequest(job, query.worker, query.attempt, query.follow, query.tail_lines)
    begin = _resume(last_event_id, query.attempt) or await found.logs.begin(wanted)
    if begin is None:
        if not query.follow:
            raise Problem(ProblemCode.NO_LOG, _missing(job.status.attempt, query.attempt))
        begin = Position(query.attempt or max(1, job.status.attempt), 0)
    if wants_events(accept):
        return found.hub.response("logs", caller.name, found.logs.sse(wanted, begin), EVENT_STREAM)
    return found.hub.response("logs", caller.name, found.logs.raw(wanted, begin), PLAIN)


def _resume(last_event_id: str | None, attempt: int | None) -> Position | None:
    if not last_event_id:
        return None
    try:
        position = Position.parse(last_event_id)
    except ValueError as error:
        raise invalid("/last-event-id", str(error), place="header") from None
    if attempt is not None and position.attempt != attempt:
        raise invalid("/last-event-id", f"is of attempt {position.attempt}, not {attempt}", place="header")
    return position


def _missing(newest: int, wanted: int | None) -> str:
    if newest == 0:
        return "The job has not started yet; follow=true waits for its log, `stoker why` says what it waits for."
    if wanted is not None and wanted > newest:
        return f"The job is at attempt {newest}; follow=true waits for later ones."
    return "The log is not there yet, or not any more; follow=true waits for it."
