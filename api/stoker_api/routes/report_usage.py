"""What exporters report: receipts, GPU events and GPU health; and who owns the pods on a node. Their token is bound to
their node.

Strict: an exporter reports on its own node only, and of jobs that there are, or that were and are known to usage.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.reports import (
    GpuEventsAnswer,
    GpuEventsReport,
    GpusAnswer,
    GpusReport,
    OwnersAnswer,
    OwnersQuery,
    PodOwner,
    ReceiptRefused,
    ReceiptsAnswer,
    ReceiptsReport,
)
from stoker.spec.usage import GpuReceipt
from stoker_api.access import Access, access
from stoker_api.bodies import body_of, dump, json_body, json_response
from stoker_api.declared_problems import refuses
from stoker_api.gpu_health import UnknownNode
from stoker_api.kept_file import FileUnavailable
from stoker_api.middleware.limits import Bounds, bounded
from stoker_api.problems import Problem, ProblemCode
from stoker_api.services import services
from stoker_api.usage.amounts import impossible
from stoker_api.worker_logs.log_file import LogOwner

from .common import Router, job_of_uid, parse_report, usage_of

router = Router(tags=["report"])
MAX_REPORT = 4 << 20
_RETRY_S = 30
_NODE_RETRY_S = 5
_BOUNDS = Bounds(max_body=MAX_REPORT, too_large="send fewer receipts at once")


@router.post("/v1/report/usage", response_model=ReceiptsAnswer, openapi_extra=body_of("ReceiptsReport"))
@bounded(_BOUNDS)
@access(Access.EXPORTER)
@refuses(ProblemCode.FORBIDDEN, ProblemCode.NOT_FOUND)
async def report_usage(request: Request) -> Response:
    """Receipts of one node. Those taken are on the disk; what was known already counts as taken. A refused one will be
    refused again; the answer says why."""
    found = services(request)
    usage = usage_of(found)
    report = parse_report(ReceiptsReport, await json_body(request, max_bytes=MAX_REPORT))
    node = request.state.node
    _check_node(node, report.node)
    now_s = found.deps.clock.now().timestamp()
    refused: dict[int, str] = {}
    receipts: dict[int, GpuReceipt] = {}
    jobs: dict[tuple[str, str, str], TrainingJob | None] = {}
    for index, data in enumerate(report.receipts):
        try:
            receipt = GpuReceipt.model_validate(data)
        except ValidationError as error:
            refused[index] = _why(error)
            continue
        named = (receipt.project, receipt.job_name, receipt.job_uid)
        if named not in jobs:
            jobs[named] = await job_of_uid(found, *named)
        job = jobs[named]
        why = impossible(receipt, now_s) or _foreign(receipt, node, job)
        if why:
            refused[index] = why
            continue
        receipts[index] = receipt
    at = list(receipts)
    try:
        taken = await usage.take([job for job in jobs.values() if job is not None], list(receipts.values()))
    except FileUnavailable as error:
        found.metrics.receipts.labels("unavailable").inc(len(report.receipts))
        raise _not_now(error) from None
    if found.curves is not None:
        listed = list(receipts.values())
        found.curves.take_receipts(listed[index] for index in taken.new)
    refused |= {at[index]: why for index, why in taken.refused}
    found.writer.wake()
    for outcome, count in (("taken", taken.new), ("stale", taken.stale), ("refused", refused)):
        found.metrics.receipts.labels(outcome).inc(len(count))
    answer = ReceiptsAnswer(
        taken=len(taken.new) + len(taken.stale),
        refused=tuple(ReceiptRefused(index=index, why=why) for index, why in sorted(refused.items())),
    )
    return json_response(dump(answer))


@router.post("/v1/report/owners", response_model=OwnersAnswer, openapi_extra=body_of("OwnersQuery"))
@access(Access.EXPORTER)
@refuses(ProblemCode.FORBIDDEN)
async def report_owners(request: Request) -> Response:
    """Whose the pods on the exporter's node are. What is not (yet) known is left out; what is no worker of
    Stoker's has an empty jobUid."""
    found = services(request)
    asked = parse_report(OwnersQuery, await json_body(request))
    node, deps = request.state.node, found.deps
    owners: list[PodOwner] = []
    for pod_name in asked.pods:
        key = Key(pod_name.namespace, pod_name.name)
        pod = deps.pods.get(key)
        if pod is not None and pod.spec.node_name == node:
            owner = PodOwner(namespace=key.namespace, name=key.name, pod_uid=pod.uid, ended=pod.ended)
            claimed = LogOwner.of(pod)
            job = None if claimed is None else deps.jobs.by_uid(claimed.job_uid)
            # A pod may claim anything: it is a worker of a job of its own project, or of none.
            if claimed is not None and job is not None and job.key == Key(claimed.project, claimed.job_name):
                owner = owner.model_copy(update=asdict(claimed))
            owners.append(owner)
        elif deps.other_pods is not None:
            other = deps.other_pods.get(key)
            if other is not None and other.spec.node_name == node:
                owners.append(PodOwner(namespace=key.namespace, name=key.name, pod_uid=other.uid))
    return json_response(dump(OwnersAnswer(owners=tuple(owners))))


@router.post("/v1/report/gpu-events", response_model=GpuEventsAnswer, openapi_extra=body_of("GpuEventsReport"))
@access(Access.EXPORTER)
@refuses(ProblemCode.FORBIDDEN)
async def report_gpu_events(request: Request) -> Response:
    """What happened to GPUs: an event on each job that held one. One that is known is not written again."""
    found = services(request)
    report = parse_report(GpuEventsReport, await json_body(request))
    node = request.state.node
    _check_node(node, report.node)
    for event in report.events:
        found.metrics.gpu_events.labels(event.kind).inc()
        for owner in event.owners:
            job = await job_of_uid(found, owner.project, owner.job_name, owner.job_uid)
            if job is not None and _ran_on(job, node):
                await found.gpu_events.write(job, node, event)
    return json_response(dump(GpuEventsAnswer(taken=len(report.events))))


@router.post("/v1/report/gpus", response_model=GpusAnswer, openapi_extra=body_of("GpusReport"))
@access(Access.EXPORTER)
@refuses(ProblemCode.FORBIDDEN)
async def report_gpus(request: Request) -> Response:
    """How the GPUs of one node are. What makes one sick keeps new jobs off it; what has not changed is not written."""
    found = services(request)
    report = parse_report(GpusReport, await json_body(request))
    _check_node(request.state.node, report.node)
    try:
        await found.gpu_health.take(report)
    except UnknownNode:
        detail = f"Node {report.node!r} is not known here yet; post its GPUs again later."
        raise Problem(ProblemCode.UNAVAILABLE, detail, retry_after_s=_NODE_RETRY_S) from None
    return json_response(dump(GpusAnswer(taken=len(report.gpus))))


def _not_now(error: FileUnavailable) -> Problem:
    detail = f"Usage can't be kept now ({error}); keep the receipts and post them later."
    return Problem(ProblemCode.UNAVAILABLE, detail, retry_after_s=_RETRY_S)


def _why(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _check_node(node: str, reported: str) -> None:
    if reported != node:
        raise Problem(ProblemCode.FORBIDDEN, f"The token is node {node!r}'s; an exporter reports on its own node only.")


def _foreign(receipt: GpuReceipt, node: str, job: TrainingJob | None) -> str:
    """Why the receipt is none of this node's, or of another job than it says; "": it is in order."""
    if receipt.node != node:
        return f"it is of node {receipt.node!r}; the token is {node!r}'s"
    if job is None:
        return ""  # gone: the file knows whether it was there
    if job.key != Key(receipt.project, receipt.job_name):
        return "jobUid is another job's than project and jobName say"
    if receipt.worker >= job.spec.most_workers:
        return f"the job has {job.spec.most_workers} worker(s)"
    if receipt.attempt > job.status.attempt:
        return f"the job's newest attempt is {job.status.attempt}"
    ran_on = _node_of(job, receipt.attempt, receipt.worker)
    if ran_on not in (None, node):
        return f"worker {receipt.worker} of attempt {receipt.attempt} runs on another node"
    return ""


def _node_of(job: TrainingJob, attempt: int, worker: int) -> str | None:
    """Where the worker runs or ran; None: unknown."""
    for end in job.status.attempts:
        if end.number == attempt:
            return next((one.node for one in end.workers if one.worker == worker), None)
    if attempt != job.status.attempt:
        return None
    return next((placed.node for placed in job.status.placement if placed.worker == worker), None)


def _ran_on(job: TrainingJob, node: str) -> bool:
    ended = {worker.node for end in job.status.attempts for worker in end.workers}
    return node in ended | {placed.node for placed in job.status.placement}
