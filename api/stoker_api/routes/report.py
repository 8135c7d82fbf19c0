"""What workers report. Their token is bound to their pod; what they may speak of is read from that pod."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_WORKER
from stoker.spec.pod import Pod
from stoker_api.access import Access, access
from stoker_api.bodies import body_of, json_body
from stoker_api.faults import invalid_fields
from stoker_api.models import ProgressReport
from stoker_api.problems import Code, Problem
from stoker_api.services import Services, services

router = APIRouter(tags=["report"])
MAX_REPORT = 64 * 1024


@router.post("/v1/report/progress", status_code=204, response_model=None, openapi_extra=body_of("ProgressReport"))
@access(Access.WORKER)
async def report_progress(request: Request) -> Response:
    """The supervisor's newest progress. Stale reports are taken and left aside: a worker need not care."""
    found = services(request)
    try:
        report = _parse(await json_body(request, max_bytes=MAX_REPORT))
        job = _job_of(found, request.state.pod_uid, report)
    except Problem:
        found.metrics.reports.labels("refused").inc()
        raise
    # Worker 0 speaks for its gang, as its exit record does for the attempt.
    now_s = found.deps.clock.monotonic()
    taken = report.worker == 0 and found.board.report(job, report.attempt, report.progress, now_s)
    if taken:
        found.writer.wake()
        found.news.tell(job.uid)
    found.metrics.reports.labels("taken" if taken else "stale").inc()
    return Response(status_code=204)


def _parse(body: bytes) -> ProgressReport:
    try:
        data = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise Problem(Code.INVALID_JSON, "The report is no valid JSON.") from None
    try:
        return ProgressReport.model_validate(_finite(data))
    except ValidationError as error:
        listed = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(listed, root=ProgressReport, data=data) from None


def _finite(data: Any) -> Any:
    """Without the metrics that are no numbers now: a loss that became NaN must not cost the whole report."""
    if not isinstance(data, dict):
        return data
    progress = data.get("progress")
    if not isinstance(progress, dict) or not isinstance(metrics := progress.get("metrics"), dict):
        return data
    kept = {
        name: value
        for name, value in metrics.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }
    return {**data, "progress": {**progress, "metrics": kept}}


def _job_of(found: Services, pod_uid: str, report: ProgressReport) -> TrainingJob:
    if report.pod_uid != pod_uid:
        raise Problem(Code.FORBIDDEN, "The token is another pod's.")
    pod = found.deps.pods.by_uid(pod_uid)
    if pod is None:
        raise Problem(Code.NOT_FOUND, "There is no such pod (yet, or any more).")
    if _said(pod) != (report.project, report.job_name, report.job_uid, str(report.attempt), str(report.worker)):
        raise Problem(Code.FORBIDDEN, "The report speaks of another worker than the token's pod.")
    job = found.deps.jobs.get(Key(report.project, report.job_name))
    if job is None or job.uid != report.job_uid:
        raise Problem(Code.NOT_FOUND, "The pod's job is gone.")
    return job


def _said(pod: Pod) -> tuple[str, ...]:
    labels = pod.metadata.labels
    names = (LABEL_JOB, LABEL_JOB_UID, LABEL_ATTEMPT, LABEL_WORKER)
    return (pod.metadata.namespace, *(labels.get(name, "") for name in names))
