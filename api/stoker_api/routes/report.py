"""What workers report. Their token is bound to their pod; what they may report on is read from that pod."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.reports import AliveAnswer, LogAnswer, ProgressReport, ReaderAnswer, StallOrder, WorkerReport
from stoker.spec.worker_pod import identity, is_reader
from stoker_api.access import Access, access
from stoker_api.bodies import body_of, dump, expect_type, json_body, json_response
from stoker_api.declared_problems import refuses
from stoker_api.jobs.stray_workers import unwanted, why_stop
from stoker_api.problems import MEDIA_TYPE as PROBLEM
from stoker_api.problems import TRACE_ID, Problem, ProblemCode
from stoker_api.services import Services, services
from stoker_api.worker_logs.log_file import Gap, LogOwner
from stoker_api.worker_logs.source import WorkerLogSource
from stoker_api.worker_logs.storage import LogGone, LogsFull

from .common import QueryModel, Router, parse_report

router = Router(tags=["report"])
MAX_REPORT = 64 * 1024
OCTETS = "application/octet-stream"
_BYTES = {"type": "string", "format": "binary"}
_FULL_RETRY_S = 30
MOST_STALL_S = 60.0
"""Longer than a gang waits, whatever the clocks of two machines say."""


class LogQuery(QueryModel):
    offset: int = Field(ge=0, lt=2**53, description="Which byte of the worker's log the body begins with.")
    lost: bool = Field(default=False, description="Nothing before `offset` can be sent any more.")


@router.get("/v1/report/reader", response_model=ReaderAnswer)
@access(Access.WORKER)
@refuses(ProblemCode.NOT_FOUND)
async def report_reader(request: Request) -> Response:
    """The sessions that wait for a pod that reads a job's files."""
    found = services(request)
    pod = found.deps.pods.by_uid(request.state.pod_uid)
    if pod is None:
        raise Problem(ProblemCode.UNAVAILABLE, "There is no such pod (yet, or any more); try again.", retry_after_s=1)
    if not is_reader(pod.metadata):
        raise Problem(ProblemCode.NOT_FOUND, "The pod is none that reads files.")
    return json_response(dump(ReaderAnswer(sessions=tuple(found.sessions.waiting(pod.uid)))))


@router.post("/v1/report/progress", status_code=204, response_model=None, openapi_extra=body_of("ProgressReport"))
@access(Access.WORKER)
@refuses(ProblemCode.FORBIDDEN, ProblemCode.NOT_FOUND)
async def report_progress(request: Request) -> Response:
    """A worker's newest progress. Stale reports are taken and left aside: a worker need not care."""
    found = services(request)
    try:
        report = parse_report(ProgressReport, await json_body(request, max_bytes=MAX_REPORT))
        job = _job_of(found, request.state.pod_uid, report)
    except Problem:
        found.metrics.reports.labels("refused").inc()
        raise
    now_s = found.deps.clock.monotonic()
    taken = found.board.report(job, report.attempt, report.progress, now_s, report.worker)
    if taken:
        found.writer.wake()
        if found.curves is not None and report.worker == 0:
            found.curves.take(job, report.attempt, report.progress)
        found.followers.wake(job.uid)
    found.metrics.reports.labels("taken" if taken else "stale").inc()
    return Response(status_code=204)


@router.post("/v1/report/alive", response_model=AliveAnswer, openapi_extra=body_of("WorkerReport"))
@access(Access.WORKER)
@refuses(ProblemCode.FORBIDDEN, ProblemCode.NOT_FOUND)
async def report_alive(request: Request) -> Response:
    """Whether the worker is still wanted. One that is not (its pod, job or attempt is over) is to save and to end."""
    found = services(request)
    outcome = "refused"
    try:
        report = parse_report(WorkerReport, await json_body(request, max_bytes=MAX_REPORT))
        _pod_of(found, request.state.pod_uid, report)
        why = await why_stop(found.deps, report)
        outcome = "stop" if why else "wanted"
    finally:
        found.metrics.alive_posts.labels(outcome).inc()
    return _answer(AliveAnswer(**_orders(found, report.pod_uid, report, why)))


@router.post(
    "/v1/report/log",
    response_model=LogAnswer,
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {"schema": _BYTES}}}},
)
@access(Access.WORKER)
@refuses(ProblemCode.NOT_FOUND, ProblemCode.LOG_GAP, ProblemCode.LOGS_FULL)
async def report_log(request: Request, query: Annotated[LogQuery, Query()]) -> Response:
    """A piece of the worker's log. What is held already is left aside, so every piece may be posted again."""
    found = services(request)
    posts = found.metrics.log_posts
    outcome = "refused"
    try:
        source, pod_uid = _log_source(found), request.state.pod_uid
        owner = source.owner_of(pod_uid)
        if owner is None:
            raise Problem(ProblemCode.NOT_FOUND, "There is no such pod (yet), or its job is gone.")
        expect_type(request, OCTETS, f"send the log's bytes as {OCTETS}")
        data = await request.body()
        try:
            held = await source.take(pod_uid, owner, query.offset, data, lost=query.lost)
        except Gap as gap:
            outcome = "gap"
            problem = Problem(ProblemCode.LOG_GAP, f"Post again from offset {gap.wanted} on.")
            body = problem.document(request.scope.get(TRACE_ID, "")) | {"offset": gap.wanted}
            return Response(json.dumps(body), status_code=problem.status, media_type=PROBLEM)
        except LogsFull as full:
            outcome = "full"
            raise Problem(
                ProblemCode.LOGS_FULL, f"{full}. Keep it and post it later.", retry_after_s=_FULL_RETRY_S
            ) from None
        except LogGone:
            raise Problem(ProblemCode.NOT_FOUND, "The pod's job is gone, and its log with it.") from None
        outcome = "taken"
        found.metrics.log_bytes.inc(len(data))
        deps = found.deps
        why = unwanted(deps.pods.by_uid(pod_uid), deps.jobs.by_uid(owner.job_uid), owner.attempt)
        return _answer(LogAnswer(offset=held, **_orders(found, pod_uid, owner, why)))
    finally:
        posts.labels(outcome).inc()


def _log_source(found: Services) -> WorkerLogSource:
    source = found.deps.logs
    if not isinstance(source, WorkerLogSource):
        raise Problem(
            ProblemCode.NOT_FOUND, "This server reads its workers' logs where they are written; nothing to post."
        )
    return source


def _orders(found: Services, pod_uid: str, who: WorkerReport | LogOwner, why_stop: str) -> dict[str, Any]:
    """What every answer to a worker holds; one that is to stop gets nothing else."""
    if why_stop:
        return {"stop": True, "why": why_stop}
    stalled = _stall(found, who.job_uid, who.attempt, who.worker)
    return {"stop": False, "why": "", "sessions": tuple(found.sessions.waiting(pod_uid)), "stalled": stalled}


def _stall(found: Services, job_uid: str, attempt: int, worker: int) -> StallOrder | None:
    """What the other workers of a gang get once worker 0 makes no progress; None: nothing."""
    job = found.deps.jobs.by_uid(job_uid)
    progress = None if job is None or worker == 0 else found.board.newest(job)
    stalled = None if progress is None else progress.stalled
    if stalled is None or stalled.attempt != attempt:
        return None
    in_s = stalled.until - found.deps.clock.now().timestamp()
    return StallOrder(in_s=round(min(MOST_STALL_S, max(0.0, in_s)), 3), why=f"worker 0: {stalled.message}"[:300])


def _answer(answer: AliveAnswer) -> Response:
    absent = {name for name in ("sessions", "stalled") if not getattr(answer, name)}
    return json_response(answer.model_dump_json(by_alias=True, exclude=absent).encode())


def _pod_of(found: Services, pod_uid: str, report: WorkerReport) -> Pod | None:
    """The token's pod, of which the report must be; None: it is not known (yet, or any more)."""
    if report.pod_uid != pod_uid:
        raise Problem(ProblemCode.FORBIDDEN, "The token is another pod's.")
    pod = found.deps.pods.by_uid(pod_uid)
    if pod is not None and identity(pod.metadata) != (
        report.project, report.job_name, report.job_uid, report.attempt, report.worker,
    ):  # fmt: skip
        raise Problem(ProblemCode.FORBIDDEN, "The report is of another worker than the token's pod.")
    return pod


def _job_of(found: Services, pod_uid: str, report: WorkerReport) -> TrainingJob:
    if _pod_of(found, pod_uid, report) is None:
        raise Problem(ProblemCode.NOT_FOUND, "There is no such pod (yet, or any more).")
    job = found.deps.jobs.get(Key(report.project, report.job_name))
    if job is None or job.uid != report.job_uid:
        raise Problem(ProblemCode.NOT_FOUND, "The pod's job is gone.")
    return job
