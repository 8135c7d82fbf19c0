"""A worker fetches the code that its job names: its token says which pod it is, the pod says which job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stoker.spec.code import BUNDLE_TYPE
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.quantity import format_duration
from stoker.store.port import NotFound
from stoker_api.access import Access, access
from stoker_api.code.bundle import Bundle
from stoker_api.code.store import CodeStore
from stoker_api.problems import Problem, ProblemCode
from stoker_api.services import Services, services
from stoker_api.worker_logs.log_file import LogOwner

router = APIRouter(tags=["report"])
log = logging.getLogger(__name__)
_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_SEND_S = 60.0


@router.get("/v1/report/code", response_model=None, responses={200: {"content": {BUNDLE_TYPE: _BYTES}}})
@access(Access.WORKER)
async def report_code(request: Request) -> Response:
    """The bundle that the pod's job names: the manifest's size, a line feed, the manifest, then each distinct file."""
    found = services(request)
    job = await _job_of(found, request.state.pod_uid)
    name, project, digest = job.metadata.name, job.metadata.namespace, job.spec.trainer.code
    if digest is None:
        raise Problem(ProblemCode.NOT_FOUND, f"Job {name!r} names no code.")
    code = found.deps.code
    bundle = None if code is None else await code.find(project, digest)
    if code is None or bundle is None:
        kept = "" if code is None else f" (what no job names is kept {format_duration(code.limits.keep_s)})"
        raise Problem(
            ProblemCode.NOT_FOUND,
            f"The code of job {name!r}, bundle {digest}, is not on this server any more{kept}; submit the job again "
            "from its folder.",
        )
    return _BundleResponse(_counted(found, code, project, bundle), bundle)


async def _job_of(found: Services, pod_uid: str) -> TrainingJob:
    """Raises: Problem. A pod that is not known is one that the cache has yet to hear of, or soon none."""
    pod = found.deps.pods.by_uid(pod_uid)
    if pod is None:
        raise Problem(ProblemCode.UNAVAILABLE, "There is no such pod (yet, or any more); try again.", retry_after_s=1)
    owner = LogOwner.of(pod)
    if owner is None:
        raise Problem(ProblemCode.NOT_FOUND, "The pod is no worker of Stoker's.")
    job = found.deps.jobs.by_uid(owner.job_uid)
    if job is None:
        try:
            job = await found.deps.store.get(JOBS, Key(owner.project, owner.job_name))
        except NotFound:
            pass
    # A pod may say what it likes of itself: it reaches the jobs of its own project.
    if job is None or job.uid != owner.job_uid or job.metadata.namespace != owner.project:
        raise Problem(ProblemCode.NOT_FOUND, "The pod's job is gone.")
    return job


async def _counted(found: Services, code: CodeStore, project: str, bundle: Bundle) -> AsyncIterator[bytes]:
    sent = found.metrics.code_bytes.labels("sent")
    async for piece in code.pieces(project, bundle):
        sent.inc(len(piece))
        yield piece


class _BundleResponse(StreamingResponse):
    """Cut off where the worker takes nothing for a minute: the missing bytes make it come again."""

    def __init__(self, pieces: AsyncIterator[bytes], bundle: Bundle) -> None:
        super().__init__(pieces, media_type=BUNDLE_TYPE, headers={"Content-Length": str(bundle.length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timely_send(message: Message) -> None:
            async with asyncio.timeout(_SEND_S):
                await send(message)

        try:
            await super().__call__(scope, receive, timely_send)
        except (TimeoutError, EOFError, OSError) as error:
            log.warning("a bundle on its way to a worker was cut off: %r", error)
