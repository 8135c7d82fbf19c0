"""A job's files: listed, and read whole or by ranges.

What lies there is untrusted: it goes out as an attachment of no type, so that no browser takes it for a page.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request
from pydantic import Field, JsonValue
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stoker.spec.rest import FileList
from stoker_api.access import Caller, access
from stoker_api.bodies import dump, json_response, unchanged
from stoker_api.declared_problems import FILE, refuses
from stoker_api.files.ranges import Span, modified_text, wanted
from stoker_api.files.transfers import Transfer
from stoker_api.identity import GET_FILES
from stoker_api.ports import FileStamp, OpenFile
from stoker_api.problems import ProblemCode
from stoker_api.services import Services, services

from .common import IfNoneMatch, Name, Project, QueryModel, Router, find_job

log = logging.getLogger(__name__)

router = Router(tags=["files"])
OCTETS = "application/octet-stream"
_BYTES: dict[str, JsonValue] = {"schema": {"type": "string", "format": "binary"}}
_SEND_S = 60.0
"""A client that takes nothing for so long is cut off; it may go on with a range."""
MOST_LISTED = 10_000

_FilePath = Annotated[str, Path(max_length=4096, description="Within the output folder, as the list has it.")]
_Range = Annotated[str | None, Header(alias="Range", max_length=100, description="`bytes=FIRST-LAST`, one range.")]
_IfRange = Annotated[str | None, Header(max_length=1024, description="The range counts only if this is its ETag.")]


class FilesQuery(QueryModel):
    folder: str = Field(default="", max_length=4096, description="Only what is below it. Absent: everything.")
    limit: int = Field(default=1000, ge=1, le=MOST_LISTED, description="Files at most.")


@router.get("/v1/projects/{project}/jobs/{name}/files", response_model=FileList)
@access(GET_FILES)
@refuses(*FILE)
async def list_files(
    request: Request, project: Project, name: Name, caller: Caller, query: Annotated[FilesQuery, Query()]
) -> Response:
    """The job's files: what it has left in its output folder so far, and beside its code, by path."""
    found = services(request)
    job = await find_job(found, project, name)
    with found.transfers.begin(caller.name):
        listed = await found.files.list(job, query.folder, query.limit)
    return json_response(dump(listed))


_WHOLE: dict[int | str, dict[str, Any]] = {200: {"content": {OCTETS: _BYTES}}, 206: {"content": {OCTETS: _BYTES}}}
_PATH = "/v1/projects/{project}/jobs/{name}/files/{path:path}"


@router.get(_PATH, response_model=None, responses=_WHOLE)
@router.head(_PATH, response_model=None, include_in_schema=False)
@access(GET_FILES)
@refuses(*FILE, ProblemCode.RANGE_NOT_SATISFIABLE)
async def read_file(
    request: Request,
    project: Project,
    name: Name,
    path: _FilePath,
    caller: Caller,
    range_: _Range = None,
    if_range: _IfRange = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """One file, or a range of it (206). `ETag` changes with its content; `If-Range` makes going on safe."""
    asked = FileRequest(request.method, range_, if_range, if_none_match)
    return await sent_file(services(request), caller.name, project, name, path, asked)


@dataclass(frozen=True, slots=True)
class FileRequest:
    """How a file is asked for; the headers as they came."""

    method: str = "GET"
    range_: str | None = None
    if_range: str | None = None
    if_none_match: str | None = None
    disposition: str = "attachment"


async def sent_file(found: Services, caller: str, project: str, name: str, path: str, asked: FileRequest) -> Response:
    """The answer that sends it, to a caller that may have it. Raises: Problem."""
    job = await find_job(found, project, name)
    with found.transfers.begin(caller) as transfer:
        file = await found.files.open(job, path)
        sends = False
        try:
            if unchanged(asked.if_none_match, file.stamp.etag):
                return Response(status_code=304, headers=_headers(file.stamp, asked))
            span = wanted(file.stamp, asked.range_, asked.if_range)
            headers = _headers(file.stamp, asked)
            headers |= {"Content-Length": str(span.end - span.start), "Content-Type": OCTETS}
            if span.part:
                headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{file.stamp.size}"
            status = 206 if span.part else 200
            if asked.method == "HEAD":
                return Response(status_code=status, headers=headers)
            sends = True
            return _FileResponse(file, span, status, headers, transfer.hand_on())
        finally:
            if not sends:
                await file.close()


def _headers(stamp: FileStamp, asked: FileRequest) -> dict[str, str]:
    return {
        "ETag": stamp.etag,
        "Last-Modified": modified_text(stamp),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": asked.disposition,
    }


class _FileResponse(StreamingResponse):
    """Cut off where the file becomes shorter or the client takes nothing: the missing bytes say so."""

    def __init__(self, file: OpenFile, span: Span, status: int, headers: dict[str, str], transfer: Transfer) -> None:
        super().__init__(file.pieces(span.start, span.end), status_code=status, headers=headers)
        self._file, self._transfer = file, transfer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timely_send(message: Message) -> None:
            async with asyncio.timeout(_SEND_S):
                await send(message)

        try:
            await super().__call__(scope, receive, timely_send)
        except (TimeoutError, OSError) as error:
            log.warning("a file on its way to a client was cut off: %r", error)
        finally:
            self._transfer.end()
            await self._file.close()
