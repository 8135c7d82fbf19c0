"""Request bodies as bytes, and answers from bytes: the hot routes validate once and serialise once.

FastAPI would parse, validate and dump a second time around the models; the routes take the raw body and hand out bytes,
and the OpenAPI document gets its schemas from `openapi.py`.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from .problems import Problem, ProblemCode

JSON = "application/json"


def expect_type(request: Request, wanted: str, what_to_send: str) -> None:
    """Raises: Problem (415) where the body's media type is another."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != wanted and not (wanted == JSON and found.startswith("application/") and found.endswith("+json")):
        detail = f"The body is {found or 'of no type'}; {what_to_send}."
        raise Problem(ProblemCode.UNSUPPORTED_MEDIA_TYPE, detail, headers={"Accept": wanted})


async def json_body(request: Request, *, max_bytes: int | None = None) -> bytes:
    """The body, if its media type is JSON. Raises: Problem (413, 415)."""
    yaml = "(`stoker submit -f job.yaml` turns YAML into it)"
    expect_type(request, JSON, f"send JSON with `Content-Type: application/json` {yaml}")
    body = await request.body()
    if max_bytes is not None and len(body) > max_bytes:
        raise Problem(ProblemCode.BODY_TOO_LARGE, f"The body is over {max_bytes} bytes, the most this route takes.")
    return body


def dump(obj: BaseModel) -> bytes:
    """The object as the api shows it (`Resource.dump`), on one line."""
    return obj.model_dump_json(by_alias=True, exclude_none=True).encode()


def json_response(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers=headers, media_type=JSON)


def body_of(model: str) -> dict[str, Any]:
    """The `requestBody` of the OpenAPI document for a model that `openapi.py` knows."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def matches(header: str | None, current: str) -> bool:
    """If-Match: no header matches, `*` matches, else one of the list must be the current one."""
    return header is None or current in _listed(header) or header.strip() == "*"


def unchanged(header: str | None, current: str) -> bool:
    """If-None-Match: what the client holds is current. Weak tags compare by their text."""
    if header is None:
        return False
    return header.strip() == "*" or current in [tag.removeprefix("W/") for tag in _listed(header)]


def _listed(header: str) -> list[str]:
    return [part.strip() for part in header.split(",")]
