"""What jobs have had of GPUs: of one job, and sums by user, queue, project and more."""

from __future__ import annotations

import hashlib
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from stoker.spec.job import ENDED, TrainingJob
from stoker.spec.rest import JobUsageReport, UsageReport
from stoker.spec.usage import GpuReceipt, JobUsage, UsageState
from stoker_api.access import Access, Caller, access
from stoker_api.bodies import dump, json_response, unchanged
from stoker_api.declared_problems import refuses
from stoker_api.identity import GET_JOB, seen_by
from stoker_api.kept_file import FileUnavailable
from stoker_api.problems import Problem, ProblemCode, invalid, not_found
from stoker_api.services import Services, services
from stoker_api.usage import hints, history, render
from stoker_api.usage.history import MOST_ROWS, By, UsageFilter
from stoker_api.usage.intake import facts_of

from .common import LABEL, TIME, IfNoneMatch, Name, Project, QueryModel, Router, find_job, moment, one_or_more, usage_of

router = Router(tags=["usage"])
_HOUR = timedelta(hours=1)
_MOST_GPUS = 4096
NO_GPUS = "The job asked for no GPU; usage counts GPUs only."
NO_RECEIPTS = "No exporter has sent a receipt of this job (yet): see docs/usage.md."


class UsageQuery(QueryModel):
    by: str = Field(
        default="project",
        max_length=100,
        description="user, queue, project, job, model, day, hour; by commas.",
        json_schema_extra=one_or_more(By),
    )
    since: str = Field(
        default="30d",
        max_length=40,
        description="A duration before now, or a date or time (ISO 8601).",
        json_schema_extra=TIME,
    )
    until: str | None = Field(default=None, max_length=40, description="As since. Absent: now.", json_schema_extra=TIME)
    project: str | None = Field(default=None, max_length=63, description="Of this one only.", json_schema_extra=LABEL)
    queue: str | None = Field(default=None, max_length=63, description="Of this one only.", json_schema_extra=LABEL)
    user: str | None = Field(default=None, max_length=256, description="Of this submitter only.")
    limit: int = Field(
        default=1000, ge=1, le=MOST_ROWS, description="Rows at most; `truncated` says that there are more."
    )


class JobUsageQuery(QueryModel):
    attempt: int | None = Field(default=None, ge=0, description="GPUs of this attempt only.")


@router.get("/v1/usage", response_model=None, responses={200: {"model": UsageReport}})
@access(Access.KNOWN)
@refuses(ProblemCode.NOT_FOUND)
async def list_usage(request: Request, caller: Caller, query: Annotated[UsageQuery, Query()]) -> Response:
    """GPU time summed over whole hours, of the projects whose jobs the token may list."""
    found = services(request)
    store, now = usage_of(found).store, found.deps.clock.now()
    by = _by(query.by)
    since, until = moment("since", query.since, now), moment("until", query.until, now) if query.until else now
    since, until = _floor(since), _floor(until + _HOUR - timedelta(microseconds=1))
    if since >= until:
        raise invalid("/since", "must be before until", place="query")
    try:
        known = await store.read(history.projects)
        asked = known if query.project is None else {query.project}
        sees = await seen_by(found.deps.identity, caller, asked)
        if query.project is not None and not sees(query.project):
            raise not_found(f"project {query.project!r}")
        projects = {one for one in asked if sees(one)}
        wanted = UsageFilter(since, until, projects, query.queue, query.user)
        prices = found.deps.prices

        def ask(
            reader: sqlite3.Connection,
        ) -> tuple[list[history.Sum], list[history.Sum], bool, list[hints.JobAmounts]]:
            jobs = [] if query.queue is None else history.jobs_of(reader, wanted)
            return *history.sums(reader, wanted, by, prices, query.limit), jobs

        rows, totals, more, jobs = await store.read(ask)
    except FileUnavailable as error:
        raise _not_now(error) from None
    answer = UsageReport(
        since=since,
        until=until,
        by=tuple(by),
        currency=prices.currency if prices else None,
        rows=tuple(render.row(one) for one in rows),
        totals=tuple(render.row(one) for one in totals),
        truncated=more,
        hints=() if query.queue is None else tuple(hints.of_queue(query.queue, jobs)),
    )
    return json_response(dump(answer))


@router.get("/v1/projects/{project}/jobs/{name}/usage", response_model=None, responses={200: {"model": JobUsageReport}})
@access(GET_JOB)
async def job_usage(
    request: Request,
    project: Project,
    name: Name,
    query: Annotated[JobUsageQuery, Query()],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """What one job has had of GPUs, per attempt and worker. It outlives the job: of a name the newest job is meant."""
    found = services(request)
    usage, deps = usage_of(found), found.deps
    try:
        job: TrainingJob | None = await find_job(found, project, name)
    except Problem:
        job = None
    try:
        gone = await usage.store.job(project, name) if job is None else None
        if job is None and gone is None:
            raise not_found(f"job {name!r} in project {project!r}")
        facts = facts_of(job) if job is not None else gone
        assert facts is not None
        receipts = await usage.store.receipts(facts.uid)
    except FileUnavailable as error:
        raise _not_now(error) from None
    now = deps.clock.now()
    cost, unpriced_hours = render.cost(receipts, deps.prices)
    gpus = [gpu for gpu in render.gpus(receipts) if query.attempt in (None, gpu.attempt)]
    answer = JobUsageReport(
        project=facts.project,
        job=facts.name,
        job_uid=facts.uid,
        queue=facts.queue,
        user=facts.user,
        deleted=job is None,
        usage=_of_job(found, job, receipts, now),
        efficiency=render.efficiency(receipts),
        cost=cost,
        unpriced_hours=unpriced_hours,
        currency=deps.prices.currency if deps.prices else None,
        attempts=tuple(render.attempts(receipts)),
        gpus=tuple(gpus[:_MOST_GPUS]),
        truncated=len(gpus) > _MOST_GPUS,
        hints=tuple(hints.of_job(receipts, None if job is None else job.spec.gpus_per_worker)),
        note=_note(job, receipts),
    )
    body = dump(answer)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if unchanged(if_none_match, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return json_response(body, headers={"ETag": tag})


def _of_job(found: Services, job: TrainingJob | None, receipts: list[GpuReceipt], now: datetime) -> JobUsage:
    if job is None:
        return render.of_gone(receipts, now)
    usage = found.usage_board.usage_of(job, now)
    if usage is not None:
        return usage
    return JobUsage(
        state=UsageState.INCOMPLETE if job.status.phase in ENDED and job.spec.total_gpus else UsageState.RUNNING
    )


def _note(job: TrainingJob | None, receipts: list[GpuReceipt]) -> str:
    if receipts:
        return ""
    return NO_GPUS if job is not None and job.spec.total_gpus == 0 else NO_RECEIPTS


def _not_now(error: FileUnavailable) -> Problem:
    return Problem(ProblemCode.UNAVAILABLE, f"Usage can't be read now ({error}); try again.", retry_after_s=2)


def _by(text: str) -> list[By]:
    found = []
    for part in text.split(","):
        try:
            found.append(By(part.strip()))
        except ValueError:
            raise invalid("/by", f"{part.strip()!r} is none of: {', '.join(By)}", place="query") from None
    return list(dict.fromkeys(found))


def _floor(at: datetime) -> datetime:
    """The hour it lies in."""
    return datetime.fromtimestamp(int(at.timestamp()) // 3600 * 3600, UTC)
