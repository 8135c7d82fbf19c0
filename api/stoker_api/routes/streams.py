"""A job's events and its workers' logs: as they are now, or followed by resumable SSE."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from stoker.spec.rest import EventList
from stoker_api.access import Caller, access
from stoker_api.bodies import dump, json_response
from stoker_api.declared_problems import STREAM, refuses
from stoker_api.identity import GET_JOB
from stoker_api.jobs.render import joined
from stoker_api.problems import Problem, ProblemCode, invalid
from stoker_api.services import services
from stoker_api.streams.log_stream import LogRequest, Position
from stoker_api.streams.sse import EVENT_STREAM

from .common import (
    TIME,
    Accept,
    LastEventId,
    LogPosition,
    Name,
    Project,
    QueryModel,
    Router,
    event_number,
    find_job,
    moment,
    wants_events,
)

router = Router(tags=["streams"])
PLAIN = "text/plain"


@router.get(
    "/v1/projects/{project}/jobs/{name}/events",
    response_model=None,
    responses={200: {"model": EventList, "content": {EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
@access(GET_JOB)
@refuses(*STREAM)
async def job_events(
    request: Request,
    project: Project,
    name: Name,
    caller: Caller,
    accept: Accept = "application/json",
    last_event_id: LastEventId = None,
) -> Response:
    """The job's events, as a list or followed.

    `Accept: text/event-stream`: `event` (resumable by id), `job` (its state, on each change), `end`.
    """
    found = services(request)
    job = await find_job(found, project, name)
    after = event_number(last_event_id)
    if not wants_events(accept):
        return json_response(joined(dump(event) for event in found.job_events.listed(job.uid, after)))
    return found.hub.response("events", caller.name, found.job_events.follow(job, after), EVENT_STREAM)


class LogsQuery(QueryModel):
    worker: int = Field(default=0, ge=0, lt=4096, description="Its number, from 0.")
    attempt: int | None = Field(default=None, ge=1, lt=2**31, description="Absent: the newest.")
    follow: bool = Field(default=False, description="Stay, and send what is written from now on.")
    tail_lines: int | None = Field(default=None, ge=0, le=1_000_000, description="Only so many of the last lines.")
    since: str | None = Field(
        default=None,
        max_length=40,
        description="Only what was written since: a duration before now, or a date or time (ISO 8601).",
        json_schema_extra=TIME,
    )
    timestamps: bool = Field(default=False, description="The time before each line; as events: in `time` frames.")


@router.get(
    "/v1/projects/{project}/jobs/{name}/logs",
    response_model=None,
    responses={200: {"content": {PLAIN: {}, EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
@access(GET_JOB)
@refuses(ProblemCode.NO_LOG, *STREAM)
async def job_logs(
    request: Request,
    project: Project,
    name: Name,
    caller: Caller,
    query: Annotated[LogsQuery, Query()],
    accept: Accept = PLAIN,
    last_event_id: LogPosition = None,
) -> Response:
    """A worker's log, as it is or followed.

    `Accept: text/event-stream`: `log` (resumable by id), `attempt`, `time`, `end`; else the bytes as they are.
    """
    found = services(request)
    job = await find_job(found, project, name)
    if query.worker >= job.spec.most_workers:
        raise invalid("/worker", f"the job has {job.spec.most_workers} worker(s), counted from 0", place="query")
    since = None if query.since is None else moment("since", query.since, found.deps.clock.now()).timestamp()
    wanted = LogRequest(
        job, query.worker, query.attempt, query.follow, query.tail_lines, since, timestamps=query.timestamps
    )
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
