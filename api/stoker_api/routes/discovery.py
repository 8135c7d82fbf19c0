"""Prometheus' HTTP service discovery: what of Stoker, and which workers, serve metrics now."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stoker.spec.rest import ScrapeTargetGroup
from stoker_api.access import access
from stoker_api.bodies import json_response
from stoker_api.identity import GET_METRICS
from stoker_api.scrape_targets import server_targets, worker_targets
from stoker_api.services import services

from .common import QueryModel

router = APIRouter(tags=["health"])


class TargetRole(StrEnum):
    SERVERS = "servers"
    """The api and the node's exporter; scraped with a token."""
    WORKERS = "workers"
    """Trainers; scraped without any: users' code runs there."""


class TargetsQuery(QueryModel):
    role: TargetRole


@router.get("/v1/sd/prometheus", response_model=None, responses={200: {"model": list[ScrapeTargetGroup]}})
@access(GET_METRICS)
async def scrape_targets(request: Request, query: Annotated[TargetsQuery, Query()]) -> Response:
    """Targets in the format of `http_sd_configs`; `stoker prometheus-config` prints what asks for them."""
    deps = services(request).deps
    found = server_targets(deps) if query.role is TargetRole.SERVERS else worker_targets(deps)
    entries = [{"targets": [target.address], "labels": dict(target.labels)} for target in found]
    return json_response(json.dumps(entries).encode())
