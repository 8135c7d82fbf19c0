"""A job's events: as a list, or followed with its state and progress."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.spec.rest import EventList
from stoker_api.access import Caller, access
from stoker_api.bodies import json_response
from stoker_api.identity import GET_JOB
from stoker_api.jobs.render import dump, joined
from stoker_api.problems import invalid
from stoker_api.services import services
from stoker_api.streams.sse import EVENT_STREAM

from .common import Accept, LastEventId, Name, Project, find_job, wants_events

router = APIRouter(tags=["streams"])


@router.get(
    "/v1/projects/{project}/jobs/{name}/events",
    response_model=None,
    responses={200: {"model": EventList, "content": {EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
@access(GET_JOB)
async def job_events(
    request: Request,
    project: Project,
    name: Name,
    caller: Caller,
    accept: Accept = "application/json",
    last_event_id: LastEventId = None,
) -> Response:
    """`Accept: text/event-stream`: `event` (resumable by id), `job` (its state, on each change), `end`."""
    found = services(request)
    job = await find_job(found, project, name)
    after = 0
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdecimal()):
            raise invalid("/last-event-id", "must be an id this stream gave out: a number", place="header")
        after = int(last_event_id)
    if not wants_events(accept):
        return json_response(joined(dump(event) for event in found.job_events.listed(job.uid, after)))
    return found.hub.response("events", caller.name, found.job_events.follow(job, after), EVENT_STREAM)
