"""What a job has reported of its training, as curves: in ranges, also when the job is gone; or followed by SSE."""

from __future__ import annotations

import sqlite3
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from stoker.spec.job import TrainingJob
from stoker.spec.rest import JobCurves
from stoker_api.access import Caller, access
from stoker_api.bodies import json_response
from stoker_api.curves import history
from stoker_api.curves.feed import LONGEST_NAME, MOST_STEP, CurveFeed
from stoker_api.curves.history import KnownJob, Range
from stoker_api.curves.render import as_json, curve_json
from stoker_api.curves.thinning import MOST_POINTS
from stoker_api.declared_problems import STREAM, refuses
from stoker_api.identity import GET_JOB, Principal
from stoker_api.kept_file import FileUnavailable
from stoker_api.problems import Problem, ProblemCode, not_found
from stoker_api.services import Services, services
from stoker_api.streams.sse import EVENT_STREAM

from .common import (
    TIME,
    Accept,
    LastEventId,
    Name,
    Project,
    QueryModel,
    Router,
    event_number,
    find_job,
    moment,
    wants_events,
)

router = Router(tags=["jobs"])
NO_METRICS = "The job has reported no metrics (yet): see docs/curves.md."


class CurvesQuery(QueryModel):
    metric: str | None = Field(default=None, max_length=LONGEST_NAME, description="Absent: all.")
    attempt: int | None = Field(default=None, ge=0, lt=2**31, description="Absent: all.")
    first_step: int | None = Field(default=None, ge=0, le=MOST_STEP, description="From this step on.")
    last_step: int | None = Field(default=None, ge=0, le=MOST_STEP, description="Up to this step.")
    since: str | None = Field(
        default=None,
        max_length=40,
        description="A duration before now, or a date or time (ISO 8601).",
        json_schema_extra=TIME,
    )
    until: str | None = Field(default=None, max_length=40, description="As since.", json_schema_extra=TIME)
    points: int = Field(
        default=MOST_POINTS, ge=2, le=MOST_POINTS, description="At most so many of each metric; what stays is thinned."
    )


@router.get(
    "/v1/projects/{project}/jobs/{name}/metrics",
    response_model=None,
    responses={200: {"model": JobCurves, "content": {EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
@access(GET_JOB)
@refuses(*STREAM)
async def job_metrics(
    request: Request,
    project: Project,
    name: Name,
    caller: Caller,
    query: Annotated[CurvesQuery, Query()],
    accept: Accept = "application/json",
    last_event_id: LastEventId = None,
) -> Response:
    """What one job has reported over its steps, per metric and attempt. It outlives the job: of a name the newest
    job is meant. `Accept: text/event-stream`: `curves` (all so far), `sample` (resumable by id), `end`."""
    found = services(request)
    feed, wanted = _feed(found), _range(found, query)
    if wants_events(accept):
        return await _stream(found, project, name, caller, wanted, last_event_id)
    try:
        job: TrainingJob | None = await find_job(found, project, name)
    except Problem:
        job = None
    try:
        if job is not None:
            await feed.written(job.uid)
        body = await feed.store.read(lambda reader: _answer(reader, project, name, job, wanted))
    except FileUnavailable as error:
        raise Problem(
            ProblemCode.UNAVAILABLE, f"Metrics can't be read now ({error}); try again.", retry_after_s=2
        ) from None
    if body is None:
        raise not_found(f"job {name!r} in project {project!r}")
    return json_response(body)


async def _stream(
    found: Services, project: str, name: str, caller: Principal, wanted: Range, last_event_id: str | None
) -> Response:
    assert found.curve_streams is not None
    if wanted.until is not None or wanted.first_step is not None or wanted.last_step is not None:
        raise Problem(
            ProblemCode.INVALID_FIELDS, "until, firstStep and lastStep don't work with a stream; leave them out."
        )
    after = event_number(last_event_id)
    job = await find_job(found, project, name)
    return found.hub.response("metrics", caller.name, found.curve_streams.follow(job, wanted, after), EVENT_STREAM)


def _feed(found: Services) -> CurveFeed:
    if found.curves is None:
        raise Problem(ProblemCode.NOT_FOUND, "This server keeps no metrics of jobs.")
    return found.curves


def _range(found: Services, query: CurvesQuery) -> Range:
    now = found.deps.clock.now()
    return Range(
        metric=query.metric,
        attempt=query.attempt,
        first_step=query.first_step,
        last_step=query.last_step,
        since=moment("since", query.since, now).timestamp() if query.since else None,
        until=moment("until", query.until, now).timestamp() if query.until else None,
        points=query.points,
    )


def _answer(
    reader: sqlite3.Connection, project: str, name: str, job: TrainingJob | None, wanted: Range
) -> bytes | None:
    """`JobCurves` as JSON; None: nothing is known of the job. Curve by curve, so that other threads have their turn."""
    reader.execute("BEGIN")  # all of one state
    try:
        known = history.job(reader, project, name, None if job is None else job.uid)
        if known is None and job is None:
            return None
        curves = [] if known is None else history.curves(reader, known.facts.uid, wanted)
        lines = [curve_json(curve) for curve in curves]
    finally:
        reader.execute("ROLLBACK")
    head = as_json(_head(project, name, job, known, empty=not lines))
    return head[:-1] + b',"curves":[' + b",".join(lines) + b"]}"


def _head(project: str, name: str, job: TrainingJob | None, known: KnownJob | None, *, empty: bool) -> dict[str, Any]:
    uid = job.uid if job is not None else known.facts.uid if known is not None else ""
    head = {"project": project, "job": name, "jobUid": uid, "deleted": job is None}
    left_out = known is not None and known.left_out
    return {**head, "leftOut": left_out, "note": NO_METRICS if known is None and empty else ""}
