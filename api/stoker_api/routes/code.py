"""Users' code, on its way in: is a bundle here, store one, send the files it lacks. docs/code.md has the way."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import ValidationError
from starlette.responses import Response

from stoker.spec.code import MAX_BYTES, PACK_TYPE, CodeDigest, CodeManifest
from stoker.spec.rest import CodeStored, PackStored
from stoker_api.access import access
from stoker_api.bodies import body_of, json_body, json_response
from stoker_api.code.pack import MAX_PACK, BadPack
from stoker_api.code.project import Missing, WrongSize
from stoker_api.code.quota import CodeFull
from stoker_api.code.store import CodeStore
from stoker_api.field_errors import invalid_fields
from stoker_api.identity import CREATE_JOB
from stoker_api.middleware.limits import Bounds, bounded
from stoker_api.problems import Problem, ProblemCode, invalid
from stoker_api.services import Services, services
from stoker_api.strict_json import parse_json

from .common import Project, check_project

router = APIRouter(tags=["code"])
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


@router.get("/v1/projects/{project}/code/{digest}", response_model=None, responses={200: {"model": CodeStored}})
@access(CREATE_JOB)
async def get_code(request: Request, project: Project, digest: Digest) -> Response:
    """Whether the bundle is here with all its files: then nothing need be sent. Counts as a use of it."""
    bundle = await _store(services(request)).find(project, digest)
    if bundle is None:
        raise Problem(
            ProblemCode.NOT_FOUND, f"There is no code bundle {digest} in project {project!r}; PUT its manifest."
        )
    return _answer(CodeStored(digest=digest, files=bundle.files, size=bundle.size))


@router.put(
    "/v1/projects/{project}/code/{digest}",
    response_model=None,
    responses={
        200: {"model": CodeStored, "description": "It was here"},
        201: {"model": CodeStored, "description": "Stored"},
        409: {"description": "CodeIncomplete: POST the files whose SHA-256 `missing` lists, then PUT again"},
    },
    openapi_extra=body_of("CodeManifest"),
)
@access(CREATE_JOB)
@bounded(MANIFEST_BOUNDS)
async def put_code(request: Request, project: Project, digest: Digest) -> Response:
    """Store a bundle by its manifest. Files that are here already stay for an hour at least."""
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
    return _answer(answer, status=201 if outcome.created else 200)


@router.post(
    "/v1/projects/{project}/code/files",
    response_model=None,
    responses={200: {"model": PackStored}},
    openapi_extra={"requestBody": {"required": True, "content": {PACK_TYPE: _BYTES}}},
)
@access(CREATE_JOB)
@bounded(PACK_BOUNDS)
async def post_files(request: Request, project: Project) -> Response:
    """Send files, each as its SHA-256, a blank, its size, a line feed and its bytes; `Content-Encoding: gzip` is taken.

    Files before the one that is refused are kept: ask anew what is missing.
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
    return _answer(PackStored(**asdict(taken)))


def _store(found: Services) -> CodeStore:
    if found.deps.code is None:
        raise Problem(ProblemCode.NOT_FOUND, "This server keeps no code; name an image that has it.")
    return found.deps.code


def _is_gzip(request: Request) -> bool:
    """Raises: Problem (415)."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != PACK_TYPE:
        raise Problem(
            ProblemCode.UNSUPPORTED_MEDIA_TYPE,
            f"The body is {media_type or 'of no type'}; send files as {PACK_TYPE}.",
            headers={"Accept": PACK_TYPE},
        )
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
        f"{full}. Unused bundles are removed by themselves; try later, or ask an administrator for room.",
        retry_after_s=_FULL_RETRY_S,
    )


def _answer(answer: CodeStored | PackStored, *, status: int = 200) -> Response:
    return json_response(answer.model_dump_json(by_alias=True).encode(), status=status)


def parse_manifest(body: bytes, digest: str) -> CodeManifest:
    """The manifest that `digest` names. Raises: Problem (400, 422).

    Cost: 0.2 s for 10,000 files of 1.5 MB (busy 2-core build machine).
    """
    data = parse_json(body)
    try:
        manifest = CodeManifest.model_validate_json(body, strict=True)
    except ValidationError as error:
        listed = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(listed, root=CodeManifest, data=data) from None
    found = manifest.digest()
    if found != digest:
        raise invalid("/digest", f"this manifest's digest is {found}: PUT it there", place="path")
    return manifest


def wrong_size(index: int, detail: str) -> Problem:
    return invalid(f"/files/{index}/size", f"{detail}; make the manifest anew from the folder")
