"""The web page: its index at each of its views' addresses, its files, and the api's document, which `/docs` shows.

Holds nothing of any user: open to all.

Not part of the api's document: what the page shows it asks of the other routes, with its user's token.
"""

from __future__ import annotations

import asyncio
import json

from fastapi import FastAPI, Request
from starlette.responses import Response

from stoker_api.access import Access, access
from stoker_api.bodies import JSON
from stoker_api.page.assets import FOR_EVER, SECURITY, Asset, assets
from stoker_api.problems import Problem, ProblemCode

from .common import Router

router = Router(include_in_schema=False)


@router.get("/", response_model=None)
@router.get("/jobs/{path:path}", response_model=None)
@router.get("/compare", response_model=None)
@router.get("/queues", response_model=None)
@router.get("/gpus", response_model=None)
@router.get("/docs", response_model=None)
@access(Access.OPEN)
async def page(request: Request) -> Response:
    """The index: the view is chosen in the browser, by the address."""
    found = await asyncio.to_thread(assets)
    return _response(request, found.index, "no-cache")


@router.get("/page/{digest}/{path:path}", response_model=None)
@access(Access.OPEN)
async def page_file(request: Request, digest: str, path: str) -> Response:
    found = await asyncio.to_thread(assets)
    file = found.files.get(path) if digest == found.digest else None
    if file is None:
        raise Problem(ProblemCode.NOT_FOUND, "The page has no such file (any more); reload the page.")
    return _response(request, file, FOR_EVER)


@router.get("/openapi.json", response_model=None)
@access(Access.OPEN)
async def openapi(request: Request) -> Response:
    return _response(request, await asyncio.to_thread(_document, request.app), "no-cache")


def _document(app: FastAPI) -> Asset:
    """Made at the first call."""
    if not hasattr(app.state, "document"):
        app.state.document = Asset.of(JSON, json.dumps(app.openapi()).encode())
    made: Asset = app.state.document
    return made


def _response(request: Request, asset: Asset, kept: str) -> Response:
    headers = {**SECURITY, "Cache-Control": kept, "Vary": "Accept-Encoding"}
    data = asset.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], data = "gzip", asset.packed
    return Response(data, media_type=asset.media_type, headers=headers)
