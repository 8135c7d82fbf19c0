"""Users' code, on its way in (is a bundle here, store one, send the files it lacks) and out to the workers of a job.

A worker's token says which pod it is, the pod says which job, the job names the bundle. docs/code.md has the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stoker.spec.code import BUNDLE_TYPE, MAX_BYTES, PACK_TYPE, CodeDigest, CodeManifest
from stoker.spec.job import TrainingJob
from stoker.spec.quantity import format_duration
from stoker.spec.rest import CodeStored, PackStored
from stoker_api.access import Access, access
from stoker_api.bodies import body_of, dump, expect_type, json_body, json_response
from stoker_api.body_parsing import parse_body
from stoker_api.code.bundle import StoredBundle
from stoker_api.code.pack import MAX_PACK, BadPack
from stoker_api.code.project import Missing, WrongSize
from stoker_api.code.quota import CodeFull
from stoker_api.code.store import CodeStore
from stoker_api.declared_problems import refuses
from stoker_api.identity import CREATE_JOB
from stoker_api.middleware.limits import Bounds, bounded
from stoker_api.problems import Problem, ProblemCode, invalid
from stoker_api.services import Services, services
from stoker_api.worker_logs.log_file import LogOwner

from .common import Project, Router, check_project, job_of_uid

router = Router()
_BUNDLE = "/v1/projects/{project}/code/{digest}"
log = logging.getLogger(__name__)
Digest = Annotated[CodeDigest, Path(description="The bundle's: sha256: and 64 hex digits.")]

# A slow line may need minutes for a pack; one that falls silent may not.
PACK_BOUNDS = Bounds(
    max_body=MAX_PACK,
    answer_s=600.0,
    silence_s=30.0,
    too_large=f"a pack may hold {MAX_BYTES} bytes, send the files in several",
)
MAX_MANIFEST = 8 << 20
"""Units: bytes. 10,000 files whose paths have 600 characters."""
MANIFEST_BOUNDS = Bounds(
    max_body=MAX_MANIFEST, answer_s=120.0, too_large="leave files out (a .gitignore does) or shorten their paths"
)
_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_FULL_RETRY_S = 60
_SEND_S = 60.0


@router.get(
    "/v1/projects/{project}/code/{digest}", tags=["code"], response_model=None, responses={200: {"model": CodeStored}}
)
@access(CREATE_JOB)
async def get_code(request: Request, project: Project, digest: Digest) -> Response:
    """Whether a bundle of code is here with all its files: then nothing need be sent. Counts as a use of it."""
    bundle = await _store(services(request)).find(project, digest)
    if bundle is None:
        raise Problem(
            ProblemCode.NOT_FOUND, f"There is no code bundle {digest} in project {project!r}; PUT its manifest."
        )
    return json_response(dump(CodeStored(digest=digest, files=bundle.files, size=bundle.size)))


@router.put(
    _BUNDLE,
    tags=["code"],
    response_model=None,
    responses={
        200: {"model": CodeStored, "description": "It was here"},
        201: {"model": CodeStored, "description": "Stored"},
    },
    openapi_extra=body_of("CodeManifest"),
)
@access(CREATE_JOB)
@refuses(ProblemCode.CODE_INCOMPLETE, ProblemCode.CODE_FULL)
@bounded(MANIFEST_BOUNDS)
async def put_code(request: Request, project: Project, digest: Digest) -> Response:
    """Store a bundle of code by its manifest. Files that are here already stay for an hour at least."""
    check_project(project)
    code = _store(services(request))
    body = await json_body(request)
    manifest = await code.run(parse_manifest, body, digest)
    try:
        outcome = await code.put(project, digest, manifest)
    except WrongSize as wrong:
        raise wrong_size(wrong.index, str(wrong)) from None
    except CodeFull as full:
        raise _full(full) from None
    if isinstance(outcome, Missing):
        missing = outcome.sha256s
        raise Problem(
            ProblemCode.CODE_INCOMPLETE,
            f"{len(missing)} of the bundle's files are missing here: POST them to "
            f"/v1/projects/{project}/code/files, then PUT the manifest again.",
            more={"missing": missing},
        )
    answer = CodeStored(digest=digest, files=len(manifest.files), size=manifest.total_bytes)
    return json_response(dump(answer), status=201 if outcome.created else 200)


@router.post(
    "/v1/projects/{project}/code/files",
    tags=["code"],
    response_model=None,
    responses={200: {"model": PackStored}},
    openapi_extra={"requestBody": {"required": True, "content": {PACK_TYPE: _BYTES}}},
)
@access(CREATE_JOB)
@refuses(ProblemCode.INVALID_PACK, ProblemCode.CODE_FULL)
@bounded(PACK_BOUNDS)
async def post_files(request: Request, project: Project) -> Response:
    """Send files that a bundle of code lacks.

    Each as its SHA-256, a blank, its size, a line feed and its bytes; `Content-Encoding: gzip` is taken. Files before
    the one that is refused are kept: ask again what is missing.
    """
    check_project(project)
    found = services(request)
    gzip = _is_gzip(request)
    try:
        async with _store(found).receiving(project, gzip=gzip) as receiver:
            async for chunk in request.stream():
                await receiver.feed(chunk)
            taken = await receiver.finish()
    except BadPack as bad:
        raise Problem(ProblemCode.INVALID_PACK, f"{bad}.") from None
    except CodeFull as full:
        raise _full(full) from None
    found.metrics.code_bytes.labels("received").inc(taken.bytes_stored)
    return json_response(dump(PackStored(**asdict(taken))))


def _store(found: Services) -> CodeStore:
    if found.deps.code is None:
        raise Problem(ProblemCode.NOT_FOUND, "This server keeps no code; name an image that has it.")
    return found.deps.code


def _is_gzip(request: Request) -> bool:
    """Raises: Problem (415)."""
    expect_type(request, PACK_TYPE, f"send files as {PACK_TYPE}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise Problem(
            ProblemCode.UNSUPPORTED_MEDIA_TYPE,
            f"The body is encoded as {encoding[:40]!r}; send it as it is, or with `Content-Encoding: gzip`.",
            headers={"Accept-Encoding": "gzip"},
        )
    return encoding == "gzip"


def _full(full: CodeFull) -> Problem:
    return Problem(
        ProblemCode.CODE_FULL,
        f"{full}. Unused bundles expire; try later, or ask an administrator for room.",
        retry_after_s=_FULL_RETRY_S,
    )


def parse_manifest(body: bytes, digest: str) -> CodeManifest:
    """The manifest that `digest` names. Raises: Problem (400, 422).

    Cost: 0.2 s for 10,000 files of 1.5 MB (busy 2-core build machine).
    """
    manifest = parse_body(CodeManifest, body)
    found = manifest.digest()
    if found != digest:
        raise invalid("/digest", f"this manifest's digest is {found}: PUT it there", place="path")
    return manifest


def wrong_size(index: int, detail: str) -> Problem:
    return invalid(f"/files/{index}/size", f"{detail}; make a new manifest of the folder")


@router.get(
    "/v1/report/code", tags=["report"], response_model=None, responses={200: {"content": {BUNDLE_TYPE: _BYTES}}}
)
@access(Access.WORKER)
@refuses(ProblemCode.NOT_FOUND)
async def report_code(request: Request) -> Response:
    """The code that the worker's job names.

    The manifest's size, a line feed, the manifest, then each distinct file.
    """
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
    """Raises: Problem. A pod that is not known is one that the cache has yet to see, or soon none."""
    pod = found.deps.pods.by_uid(pod_uid)
    if pod is None:
        raise Problem(ProblemCode.UNAVAILABLE, "There is no such pod (yet, or any more); try again.", retry_after_s=1)
    owner = LogOwner.of(pod)
    if owner is None:
        raise Problem(ProblemCode.NOT_FOUND, "The pod is no worker of Stoker's.")
    job = await job_of_uid(found, owner.project, owner.job_name, owner.job_uid)
    # A pod may claim anything: it reaches the jobs of its own project.
    if job is None or job.metadata.namespace != owner.project:
        raise Problem(ProblemCode.NOT_FOUND, "The pod's job is gone.")
    return job


async def _counted(found: Services, code: CodeStore, project: str, bundle: StoredBundle) -> AsyncIterator[bytes]:
    sent = found.metrics.code_bytes.labels("sent")
    async for piece in code.pieces(project, bundle):
        sent.inc(len(piece))
        yield piece


class _BundleResponse(StreamingResponse):
    """Cut off where the worker takes nothing for a minute: the missing bytes make it come again."""

    def __init__(self, pieces: AsyncIterator[bytes], bundle: StoredBundle) -> None:
        super().__init__(pieces, media_type=BUNDLE_TYPE, headers={"Content-Length": str(bundle.length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timely_send(message: Message) -> None:
            async with asyncio.timeout(_SEND_S):
                await send(message)

        try:
            await super().__call__(scope, receive, timely_send)
        except (TimeoutError, EOFError, OSError) as error:
            log.warning("a bundle on its way to a worker was cut off: %r", error)
