"""Training runtimes: list, get, put, delete. Writing is the administrator's; on one machine there are none."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.spec.job import ENDED
from stoker.spec.meta import ObjectMeta
from stoker.spec.rest import RuntimeList, RuntimePut
from stoker.spec.runtime import RUNTIMES, TrainingRuntime
from stoker_api.access import Caller, access, require
from stoker_api.bodies import body_of, dump, json_body, json_response
from stoker_api.identity import CREATE_RUNTIME, DELETE_RUNTIME, LIST_RUNTIMES, UPDATE_RUNTIME
from stoker_api.jobs.render import etag, joined
from stoker_api.objects import Objects, parse_put, refuse_stale
from stoker_api.problems import Problem, ProblemCode, not_found
from stoker_api.services import Services, services

from .common import IfMatch, Name

router = APIRouter(tags=["runtimes"])


@router.get("/v1/runtimes", response_model=None, responses={200: {"model": RuntimeList}})
@access(LIST_RUNTIMES)
async def list_runtimes(request: Request) -> Response:
    """All runtimes, by name."""
    found = _runtimes(services(request))
    return json_response(joined(dump(runtime) for runtime in (found.listed() if found else ())))


@router.get("/v1/runtimes/{name}", response_model=None, responses={200: {"model": TrainingRuntime}})
@access(LIST_RUNTIMES)
async def get_runtime(request: Request, name: Name) -> Response:
    found = _runtimes(services(request))
    if found is None:
        raise not_found(f"runtime {name!r}")
    runtime = await found.find(name)
    return json_response(dump(runtime), headers={"ETag": etag(runtime)})


@router.put(
    "/v1/runtimes/{name}",
    response_model=None,
    responses={200: {"model": TrainingRuntime}, 201: {"model": TrainingRuntime, "description": "Created"}},
    openapi_extra=body_of("RuntimePut"),
)
@access(UPDATE_RUNTIME)
async def put_runtime(request: Request, caller: Caller, name: Name, if_match: IfMatch = None) -> Response:
    """Create the runtime or replace its spec. Workers that run keep what they were started with."""
    wanted = parse_put(RuntimePut, name, await json_body(request))
    found = _runtimes(services(request))
    if found is None:
        raise Problem(ProblemCode.CLUSTER_ONLY, "Runtimes say how pods are made; on one machine workers run as you.")
    runtime, created = await found.put(
        TrainingRuntime(metadata=ObjectMeta(name=name), spec=wanted.spec),
        lambda there: there.model_copy(update={"spec": wanted.spec}),
        if_match,
        lambda: require(request, caller, CREATE_RUNTIME),
    )
    return json_response(dump(runtime), status=201 if created else 200, headers={"ETag": etag(runtime)})


@router.delete("/v1/runtimes/{name}", status_code=204, response_model=None)
@access(DELETE_RUNTIME)
async def delete_runtime(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Delete a runtime that no job which has not ended names. Without `default` the built-in one holds."""
    running = services(request)
    found = _runtimes(running)
    if found is None:
        raise not_found(f"runtime {name!r}")
    runtime = await found.find(name)
    refuse_stale(runtime, if_match, "runtime")
    users = sum(job.spec.runtime == name and job.status.phase not in ENDED for job in running.deps.jobs.values())
    if users:
        raise Problem(
            ProblemCode.RUNTIME_IN_USE,
            f"{users} job(s) that have not ended name runtime {name!r}; cancel them or wait for their end.",
        )
    await found.delete(runtime, if_match)
    return Response(status_code=204)


def _runtimes(found: Services) -> Objects[TrainingRuntime] | None:
    cache = found.deps.runtimes
    return None if cache is None else Objects(found.deps.store, cache, RUNTIMES, "runtime")
