"""What all projects share: queues and training runtimes (list, get, put, delete).

Writing is the administrator's. On one machine there are no runtimes.
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import Request
from starlette.responses import Response

from stoker.spec.job import ENDED
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import DEFAULT_QUEUE, FINALIZER_IN_USE
from stoker.spec.queue import QUEUES, Queue, deletion_message, protected
from stoker.spec.queue_tree import links, unknown_types
from stoker.spec.rest import BeingDeleted, QueueList, QueuePut, QueueWithUsage, RuntimeList, RuntimePut
from stoker.spec.runtime import RUNTIMES, TrainingRuntime
from stoker_api.access import Caller, access, require
from stoker_api.bodies import body_of, dump, json_body, json_response
from stoker_api.declared_problems import refuses
from stoker_api.identity import (
    CREATE_QUEUE,
    CREATE_RUNTIME,
    DELETE_QUEUE,
    DELETE_RUNTIME,
    LIST_QUEUES,
    LIST_RUNTIMES,
    UPDATE_QUEUE,
    UPDATE_RUNTIME,
)
from stoker_api.jobs.render import etag, joined
from stoker_api.objects import Objects, parse_put, refuse_stale
from stoker_api.problems import Problem, ProblemCode, not_found
from stoker_api.services import Services, services

from .common import IfMatch, Name, Router, warning_header, with_usage

router = Router()


@router.get("/v1/queues", tags=["queues"], response_model=None, responses={200: {"model": QueueList}})
@access(LIST_QUEUES)
async def list_queues(request: Request) -> Response:
    """List the queues with what their jobs hold, by name."""
    found = services(request)
    return json_response(joined(await _queues_with_usage(found, _queues(found).listed())))


@router.get("/v1/queues/{name}", tags=["queues"], response_model=None, responses={200: {"model": QueueWithUsage}})
@access(LIST_QUEUES)
async def get_queue(request: Request, name: Name) -> Response:
    """One queue with what its jobs hold."""
    found = services(request)
    queue = await _queues(found).find(name)
    (shown,) = await _queues_with_usage(found, [queue])
    return json_response(shown, headers={"ETag": etag(queue)})


@router.put(
    "/v1/queues/{name}",
    tags=["queues"],
    response_model=None,
    responses={200: {"model": QueueWithUsage}, 201: {"model": QueueWithUsage, "description": "Created"}},
    openapi_extra=body_of("QueuePut"),
)
@access(UPDATE_QUEUE)
async def put_queue(request: Request, caller: Caller, name: Name, if_match: IfMatch = None) -> Response:
    """Create the queue or replace its spec. Running jobs go on whatever the new limit is.

    A Warning header says why its parent, its guarantee or that of a queue below it does not count.
    """
    found = services(request)
    wanted = parse_put(QueuePut, name, await json_body(request))
    queue, created = await _queues(found).put(
        Queue(metadata=ObjectMeta(name=name), spec=wanted.spec),
        lambda there: there.model_copy(update={"spec": wanted.spec}),
        if_match,
        lambda: require(request, caller, CREATE_QUEUE),
    )
    (shown,) = await _queues_with_usage(found, [queue])
    there = {one.metadata.name: one.spec for one in found.deps.queues.values()} | {name: queue.spec}
    troubles = [link.problem for one, link in links(there).items() if name in (one, there[one].parent)]
    troubles.append(unknown_types(queue.spec, found.deps.gpu_types))
    headers = {"ETag": etag(queue), **warning_header(filter(None, dict.fromkeys(troubles)))}
    return json_response(shown, status=201 if created else 200, headers=headers)


@router.delete(
    "/v1/queues/{name}",
    tags=["queues"],
    status_code=204,
    response_model=None,
    responses={202: {"model": BeingDeleted, "description": "Jobs that have not ended use it: it goes with the last"}},
)
@access(DELETE_QUEUE)
@refuses(ProblemCode.QUEUE_PROTECTED)
async def delete_queue(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Delete a queue that has none below it.

    At once, or with the last job that uses it (202). It takes no new jobs from now on.
    """
    found = services(request)
    queues = _queues(found)
    queue = await queues.find(name)
    refuse_stale(queue, if_match, "queue")
    if name == DEFAULT_QUEUE:
        raise Problem(ProblemCode.QUEUE_PROTECTED, "Queue 'default' always stays; give it a limit instead.")
    below = [one.metadata.name for one in queues.listed() if one.spec.parent == name != one.metadata.name]
    if below:
        detail = f"Queue {name!r} has queues below it: {', '.join(below)}. Remove them, or give them another parent."
        raise Problem(ProblemCode.QUEUE_PROTECTED, detail)
    users = found.index.unended(name)
    meta = queue.metadata
    if users and meta.deletion_timestamp is None and FINALIZER_IN_USE not in meta.finalizers:
        # The operator has not seen its first job yet.
        queue, _ = await queues.put(queue, protected, if_match, lambda: _gone(name))
    if await queues.delete(queue, if_match, waits=bool(users)):
        return Response(status_code=204)
    return json_response(dump(BeingDeleted(message=f"queue {name!r}: {deletion_message(users)}")), status=202)


async def _gone(name: str) -> None:
    raise not_found(f"queue {name!r}")


def _queues(found: Services) -> Objects[Queue]:
    return Objects(found.deps.store, found.deps.queues, QUEUES, "queue")


async def _queues_with_usage(found: Services, queues: Collection[Queue]) -> list[bytes]:
    used, held = await found.scheduler.queue_usage(queue.metadata.name for queue in queues), found.index.held_gpus()

    return [
        with_usage(queue, used[name].model_copy(update={"held_gpus": held.get(name, 0)}))
        for queue in queues
        if (name := queue.metadata.name)
    ]


@router.get("/v1/runtimes", tags=["runtimes"], response_model=None, responses={200: {"model": RuntimeList}})
@access(LIST_RUNTIMES)
async def list_runtimes(request: Request) -> Response:
    """List the runtimes, by name."""
    found = _runtimes(services(request))
    return json_response(joined(dump(runtime) for runtime in (found.listed() if found else ())))


@router.get("/v1/runtimes/{name}", tags=["runtimes"], response_model=None, responses={200: {"model": TrainingRuntime}})
@access(LIST_RUNTIMES)
async def get_runtime(request: Request, name: Name) -> Response:
    """One runtime."""
    found = _runtimes(services(request))
    if found is None:
        raise not_found(f"runtime {name!r}")
    runtime = await found.find(name)
    return json_response(dump(runtime), headers={"ETag": etag(runtime)})


@router.put(
    "/v1/runtimes/{name}",
    tags=["runtimes"],
    response_model=None,
    responses={200: {"model": TrainingRuntime}, 201: {"model": TrainingRuntime, "description": "Created"}},
    openapi_extra=body_of("RuntimePut"),
)
@access(UPDATE_RUNTIME)
@refuses(ProblemCode.CLUSTER_ONLY)
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


@router.delete("/v1/runtimes/{name}", tags=["runtimes"], status_code=204, response_model=None)
@access(DELETE_RUNTIME)
@refuses(ProblemCode.RUNTIME_IN_USE)
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
