"""Liveness, readiness, version, the caller's identity, metrics; what else serves metrics (Prometheus' discovery)."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import Field
from starlette.responses import Response

from stoker import __version__
from stoker.spec.names import API_VERSION
from stoker.spec.rest import ScrapeTargetGroup, ServerVersion, WhoAmI
from stoker_api.access import Access, Caller, access
from stoker_api.bodies import json_response
from stoker_api.identity import (
    CREATE_JOB,
    EVERYWHERE,
    GET_METRICS,
    LIST_JOBS,
    PROJECT_RIGHTS,
    SHARED_RIGHTS,
    UPDATE_QUEUE,
    Identity,
    Principal,
    seen_by,
)
from stoker_api.problems import Problem, ProblemCode
from stoker_api.scrape_targets import server_targets, worker_targets
from stoker_api.services import services

from .common import LABEL, QueryModel, Router

router = Router(tags=["health"])
_OK: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


@router.get("/livez", response_model=None, responses=_OK)
@access(Access.OPEN)
async def livez() -> Response:
    """Whether the process answers."""
    return Response("ok\n", media_type="text/plain")


@router.get("/readyz", response_model=None, responses=_OK)
@access(Access.OPEN)
async def readyz(request: Request) -> Response:
    """Whether the api can serve: it has read the store, which can be written."""
    found = services(request)
    if not found.ready:
        raise Problem(ProblemCode.UNAVAILABLE, "The api is still reading the store.", retry_after_s=1)
    if trouble := found.deps.trouble():
        raise Problem(ProblemCode.UNAVAILABLE, f"The server's disk takes no writes ({trouble}).", retry_after_s=5)
    return Response("ok\n", media_type="text/plain")


@router.get("/version", response_model=None, responses={200: {"model": ServerVersion}})
@access(Access.OPEN)
async def version(request: Request) -> Response:
    """The server's version, and its mode: what jobs may ask for here."""
    mode = "OneMachine" if services(request).deps.runtimes is None else "Cluster"
    return json_response(json.dumps({"version": __version__, "apiVersion": API_VERSION, "mode": mode}).encode())


class WhoAmIQuery(QueryModel):
    project: str | None = Field(default=None, max_length=63, json_schema_extra=LABEL, description="For `may`.")


@router.get("/v1/whoami", response_model=None, responses={200: {"model": WhoAmI}})
@access(Access.KNOWN)
async def whoami(request: Request, caller: Caller, query: Annotated[WhoAmIQuery, Query()]) -> Response:
    """Who the token is, and what it may do.

    Its name, the nearest role, and the projects whose jobs it sees (of those that have any, and its own).
    """
    found = services(request)
    identity = found.deps.identity
    projects = ["*"]
    if not await identity.may(caller, LIST_JOBS):
        among = found.index.projects() | identity.own_projects(caller)
        sees = await seen_by(identity, caller, among)
        projects = sorted(filter(sees, among))
    role = "reader"
    if await identity.may(caller, UPDATE_QUEUE):
        role = "admin"
    else:
        for project in [EVERYWHERE] if projects == ["*"] else projects:
            if await identity.may(caller, CREATE_JOB, project):
                role = "user"
                break
    may = await _rights(identity, caller, query.project)
    answer = {"name": caller.name, "role": role, "projects": projects, "may": may, "grafana": found.deps.grafana}
    return json_response(json.dumps(answer).encode())


async def _rights(identity: Identity, caller: Principal, project: str | None) -> list[str]:
    asked = [(right, EVERYWHERE) for right in SHARED_RIGHTS]
    if project is not None:
        asked += [(right, project) for right in PROJECT_RIGHTS]
    answers = await asyncio.gather(*(identity.may(caller, right, where) for right, where in asked))
    return [str(right) for (right, _), has in zip(asked, answers, strict=True) if has]


@router.get("/metrics", response_model=None, responses=_OK)
@access(GET_METRICS)
async def metrics(request: Request) -> Response:
    """The api's metrics in Prometheus' text format."""
    return Response(services(request).metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class TargetRole(StrEnum):
    SERVERS = "servers"
    """The api and the node's exporter; scraped with a token."""
    WORKERS = "workers"
    """Trainers; scraped without any: users' code runs there."""


class TargetsQuery(QueryModel):
    role: TargetRole = Field(
        description="servers: the api and exporters, with a token. workers: trainers, without one."
    )


@router.get("/v1/sd/prometheus", response_model=None, responses={200: {"model": list[ScrapeTargetGroup]}})
@access(GET_METRICS)
async def scrape_targets(request: Request, query: Annotated[TargetsQuery, Query()]) -> Response:
    """What Prometheus is to scrape, as its `http_sd_configs` take it. See `stoker prometheus-config`."""
    deps = services(request).deps
    found = server_targets(deps) if query.role is TargetRole.SERVERS else worker_targets(deps)
    entries = [{"targets": [target.address], "labels": dict(target.labels)} for target in found]
    return json_response(json.dumps(entries).encode())
