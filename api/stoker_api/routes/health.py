"""Is it alive, is it ready, what is it, who am I, and its metrics."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from stoker import __version__
from stoker.spec.names import API_VERSION
from stoker_api.access import Access, Caller, access
from stoker_api.bodies import json_response
from stoker_api.models import Version, WhoAmI
from stoker_api.problems import Code, Problem
from stoker_api.services import services

router = APIRouter(tags=["health"])
_OK: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


@router.get("/livez", response_model=None, responses=_OK)
@access(Access.OPEN)
async def livez() -> Response:
    return Response("ok\n", media_type="text/plain")


@router.get("/readyz", response_model=None, responses=_OK)
@access(Access.OPEN)
async def readyz(request: Request) -> Response:
    """200 once the api has read the store."""
    if not services(request).ready:
        raise Problem(Code.UNAVAILABLE, "The api is still reading the store.", retry_after_s=1)
    return Response("ok\n", media_type="text/plain")


@router.get("/version", response_model=None, responses={200: {"model": Version}})
@access(Access.OPEN)
async def version() -> Response:
    return json_response(json.dumps({"version": __version__, "apiVersion": API_VERSION}).encode())


@router.get("/v1/whoami", response_model=None, responses={200: {"model": WhoAmI}})
@access(Access.READER)
async def whoami(caller: Caller) -> Response:
    """The token's name, role and projects."""
    answer = {"name": caller.name, "role": caller.role, "projects": sorted(caller.projects)}
    return json_response(json.dumps(answer).encode())


@router.get("/metrics", response_model=None, responses=_OK)
@access(Access.READER)
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(services(request).metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/openapi.json", response_model=None, include_in_schema=False)
@access(Access.READER)
async def openapi(request: Request) -> Response:
    return json_response(json.dumps(request.app.openapi()).encode())
