"""Jobs: submit, clone, list, get, change, delete, explain, cancel, suspend, resume, retry."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

from fastapi import Header, Query, Request
from pydantic import Field
from starlette.responses import Response

from stoker.spec.job import MUTABLE, Phase, TrainingJob
from stoker.spec.reasons import Explanation
from stoker.spec.rest import JobList
from stoker_api.access import ALL, Caller, access, require
from stoker_api.bodies import body_of, dump, json_body, json_response, unchanged
from stoker_api.declared_problems import STREAM, SUBMIT, refuses
from stoker_api.identity import CREATE_JOB, DELETE_JOB, GET_JOB, LIST_JOBS, UPDATE_JOB, Principal, seen_by
from stoker_api.jobs.change import Action
from stoker_api.jobs.clone import clone_of, patched
from stoker_api.jobs.index import Filter
from stoker_api.jobs.lists import NEWEST_FIRST, SORTS, Conditions, SortBy, jobs_page, parse_selector
from stoker_api.jobs.render import etag, joined
from stoker_api.problems import Problem, ProblemCode, invalid
from stoker_api.services import Services, services
from stoker_api.streams.job_lists import Page
from stoker_api.streams.sse import EVENT_STREAM

from .common import (
    LABEL,
    TIME,
    Accept,
    IfMatch,
    IfNoneMatch,
    Name,
    Project,
    QueryModel,
    Router,
    check_project,
    find_job,
    moment,
    one_or_more,
    wants_events,
    warning_header,
)

router = Router(tags=["jobs"])
_JOB = "/v1/projects/{project}/jobs/{name}"


class SubmitQuery(QueryModel):
    dry_run: bool = Field(default=False, description="All is checked, nothing stored.")


class ListQuery(QueryModel):
    queue: str | None = Field(default=None, max_length=63, description="Of this queue.", json_schema_extra=LABEL)
    phase: str | None = Field(
        default=None,
        max_length=200,
        description="Phases, separated by commas.",
        json_schema_extra=one_or_more(Phase),
    )
    user: str | None = Field(default=None, max_length=256, description="The submitter's name.")
    gpu_type: str | None = Field(
        default=None,
        max_length=63,
        description="Of the GPUs that it has or last had, as queues name them (h100); before it had any, part of a "
        "model that it asks for.",
    )
    since: str | None = Field(
        default=None,
        max_length=40,
        description="Created since: a duration before now, or a date or time (ISO 8601).",
        json_schema_extra=TIME,
    )
    label: str | None = Field(
        default=None,
        max_length=2048,
        description="Labels, as kubectl selects: team=nlp,stage!=test,owner,!old.",
    )
    text: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Part of its name, labels, command or recipe, message or reason; case is ignored.",
    )
    sort: str = Field(
        default=NEWEST_FIRST,
        max_length=20,
        description="A '-' before it: the largest, newest or last first. Jobs without such a value come last.",
        json_schema_extra={"enum": list(SORTS)},
    )
    limit: int = Field(default=50, ge=1, le=500, description="At most so many.")
    cursor: str | None = Field(default=None, max_length=1024, description="The `nextCursor` of the page before.")


IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, pattern=r"^[!-~]+$", description="Submits at most once.")
]


@router.post(
    "/v1/projects/{project}/jobs",
    status_code=201,
    response_model=None,
    responses={201: {"model": TrainingJob}, 200: {"model": TrainingJob, "description": "dryRun"}},
    openapi_extra=body_of("Submission"),
)
@access(CREATE_JOB)
@refuses(*SUBMIT)
async def submit_job(
    request: Request,
    caller: Caller,
    project: Project,
    query: Annotated[SubmitQuery, Query()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a job. With an Idempotency-Key any number of tries make one job."""
    found = services(request)
    check_project(project)
    return await _submitted(found, caller, project, await json_body(request), query, idempotency_key)


async def _submitted(
    found: Services, caller: Principal, project: str, body: bytes, query: SubmitQuery, idempotency_key: str | None
) -> Response:
    if query.dry_run:
        job = await found.submitter.dry_run(caller, project, body)
        return json_response(
            found.renderer.job(found.scheduler.sized(job)), headers=warning_header(found.scheduler.warnings(job))
        )
    done = await found.submitter.submit(caller, project, body, idempotency_key)
    headers = {"Location": f"/v1/projects/{project}/jobs/{done.job.metadata.name}", "ETag": etag(done.job)}
    headers |= warning_header(found.scheduler.warnings(done.job))
    if done.replayed:
        headers["Idempotency-Replayed"] = "true"
    return json_response(found.renderer.job(found.scheduler.sized(done.job)), status=201, headers=headers)


@router.post(
    _JOB + "/clone",
    status_code=201,
    response_model=None,
    responses={201: {"model": TrainingJob}, 200: {"model": TrainingJob, "description": "dryRun"}},
    openapi_extra=body_of("CloneRequest"),
)
@access(CREATE_JOB)
@refuses(*SUBMIT)
async def clone_job(
    request: Request,
    caller: Caller,
    project: Project,
    name: Name,
    query: Annotated[SubmitQuery, Query()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a job once more, with the same code, or with changes."""
    found = services(request)
    await require(request, caller, GET_JOB)
    job = await find_job(found, project, name)
    body = clone_of(job, await json_body(request))
    return await _submitted(found, caller, project, body, query, idempotency_key)


@router.patch(_JOB, response_model=None, responses={200: {"model": TrainingJob}}, openapi_extra=body_of("JobPatch"))
@access(UPDATE_JOB)
@refuses(ProblemCode.QUEUE_FORBIDDEN, ProblemCode.UNKNOWN_QUEUE, ProblemCode.PRIORITY_TOO_HIGH)
async def patch_job(
    request: Request, caller: Caller, project: Project, name: Name, if_match: IfMatch = None
) -> Response:
    """Change a job's priority; suspend, cancel or retry it. A merge patch (RFC 7396) of what may change of its spec."""
    found = services(request)
    before = await find_job(found, project, name)
    body = await json_body(request)
    spec = patched(before, body)
    if spec.priority != before.spec.priority:
        await found.checks.check_queue(caller, before.model_copy(update={"spec": spec}))

    def changes_of(job: TrainingJob) -> dict[str, object]:
        new = patched(job, body)
        return {field: value for field in MUTABLE if (value := getattr(new, field)) != getattr(job.spec, field)}

    job = await found.changer.change(changes_of, before.key, if_match)
    return json_response(found.renderer.job(job), headers={"ETag": etag(job)})


@router.get(
    "/v1/projects/{project}/jobs",
    response_model=None,
    responses={200: {"model": JobList, "content": {EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
@access(LIST_JOBS)
@refuses(*STREAM)
async def list_jobs(
    request: Request,
    caller: Caller,
    project: Project,
    query: Annotated[ListQuery, Query()],
    accept: Accept = "application/json",
) -> Response:
    """List jobs, newest first or in another order. Project `-`: all that the token may see.

    `Accept: text/event-stream`: `jobs`, the page, then what has changed of it, with the `order` of all by uid.
    """
    found = services(request)
    clock, phases = found.deps.clock, _phases(query.phase)
    conditions = _conditions(query, clock.now())
    if query.sort not in SORTS:
        raise invalid("/sort", f"must be one of {', '.join(SortBy)}; with a '-' before it backwards", place="query")

    async def wanted() -> Filter:
        if project != ALL:
            return Filter(project.__eq__, project, query.queue, phases)
        sees = await seen_by(found.deps.identity, caller, found.index.projects())
        return Filter(sees, None, query.queue, phases)

    async def read(wanted: Filter) -> Page:
        return await jobs_page(
            found.index,
            wanted,
            conditions,
            sort=query.sort,
            cursor=query.cursor,
            limit=query.limit,
            now=clock.now(),
        )

    try:
        page, rest = first = await read(await wanted())
    except ValueError as error:
        raise invalid("/cursor", str(error), place="query") from None
    if wants_events(accept):
        looks_at_all = not conditions.any or query.sort != NEWEST_FIRST
        frames = found.job_lists.follow(first, wanted, read, looks_at_all=looks_at_all)
        return found.hub.response("jobs", caller.name, frames, EVENT_STREAM)
    cursor = json.dumps(rest).encode()
    return json_response(joined((found.renderer.job(job) for job in page), b',"nextCursor":' + cursor))


@router.get(_JOB, response_model=None, responses={200: {"model": TrainingJob}})
@access(GET_JOB)
async def get_job(request: Request, project: Project, name: Name, if_none_match: IfNoneMatch = None) -> Response:
    """One job with its newest live progress and usage."""
    found = services(request)
    job = await find_job(found, project, name)
    tag = {"ETag": etag(job)}
    # Live progress and usage move on while the stored object, and so its ETag, stays: then the answer is new.
    if unchanged(if_none_match, etag(job)) and found.renderer.is_stored(job):
        return Response(status_code=304, headers=tag)
    return json_response(found.renderer.job(job), headers=tag)


@router.delete(_JOB, status_code=204, response_model=None)
@access(DELETE_JOB)
async def delete_job(request: Request, project: Project, name: Name, if_match: IfMatch = None) -> Response:
    """Delete the job, its events and its logs. One that runs is stopped first, with its grace; cancel keeps it."""
    found = services(request)
    job = await find_job(found, project, name)
    await found.changer.delete(job.key, if_match)
    return Response(status_code=204)


def _conditions(query: ListQuery, now: datetime) -> Conditions:
    """Raises: Problem (422)."""
    try:
        labels = () if query.label is None else parse_selector(query.label)
    except ValueError as error:
        raise invalid("/label", str(error), place="query") from None
    since = None if query.since is None else moment("since", query.since, now)
    return Conditions(query.user, query.gpu_type, since, labels, query.text)


def _phases(text: str | None) -> frozenset[Phase] | None:
    if text is None:
        return None
    try:
        return frozenset(Phase(part.strip()) for part in text.split(","))
    except ValueError:
        raise invalid("/phase", f"must be some of {', '.join(Phase)}, separated by commas", place="query") from None


def _action_route(action: Action, description: str, *refused: ProblemCode) -> None:
    @router.post(
        f"{_JOB}/{action}",
        name=f"{action}_job",
        description=description,
        status_code=202,
        response_model=None,
        responses={202: {"model": TrainingJob}},
    )
    @access(UPDATE_JOB)
    @refuses(*refused)
    async def act(request: Request, project: Project, name: Name, if_match: IfMatch = None) -> Response:
        found = services(request)
        before = await find_job(found, project, name)
        job = await found.changer.apply(action, before.key, if_match)
        return json_response(found.renderer.job(job), status=202, headers={"ETag": etag(job)})


_action_route(Action.CANCEL, "Stop the job for good. What has ended stays as it is.")
_action_route(Action.SUSPEND, "Save and stop the job until it is resumed.")
_action_route(Action.RESUME, "Put a suspended job back into its queue.")
_action_route(Action.RETRY, "Run a Failed or Cancelled job again, from its last checkpoint.", ProblemCode.NOT_ENDED)


@router.get(_JOB + "/explain", response_model=None, responses={200: {"model": Explanation}})
@access(GET_JOB)
async def explain_job(request: Request, project: Project, name: Name) -> Response:
    """Why the job is where it is, and what would start it: the scheduler's own reasons, computed now."""
    found = services(request)
    job = await find_job(found, project, name)
    try:
        explanation = await found.scheduler.explain(job.key, found.deps.clock.now())
    except KeyError:
        raise Problem(
            ProblemCode.UNAVAILABLE, "The job has only just been stored; ask again.", retry_after_s=1
        ) from None
    return json_response(dump(explanation))
