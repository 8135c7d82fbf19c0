"""Queues: list, get, put, delete. Writing is the administrator's."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

from fastapi import APIRouter, Request
from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import DEFAULT_QUEUE, DnsLabel
from stoker.spec.queue import QUEUES, Queue
from stoker.store.port import AlreadyExists, Conflict, NotFound
from stoker_api.access import Access, Caller, access
from stoker_api.bodies import body_of, json_body, json_response
from stoker_api.etags import matches
from stoker_api.faults import invalid_fields
from stoker_api.jobs.render import dump, etag, joined
from stoker_api.jobs.submit import READ_OWN_WRITE_S
from stoker_api.models import QueueList, QueuePut, QueueWithUsage
from stoker_api.problems import Code, Problem, invalid, not_found
from stoker_api.services import Services, services
from stoker_api.strict_json import parse_json

from .common import IfMatch, Name

router = APIRouter(tags=["queues"])
_NAME: TypeAdapter[str] = TypeAdapter(DnsLabel)
_TRIES = 8


@router.get("/v1/queues", response_model=None, responses={200: {"model": QueueList}})
@access(Access.READER)
async def list_queues(request: Request, _caller: Caller) -> Response:
    """All queues with what their jobs hold, by name."""
    found = services(request)
    queues = sorted(found.deps.queues.values(), key=lambda queue: queue.metadata.name)
    return json_response(joined(_with_usage(found, queue) for queue in queues))


@router.get("/v1/queues/{name}", response_model=None, responses={200: {"model": QueueWithUsage}})
@access(Access.READER)
async def get_queue(request: Request, _caller: Caller, name: Name) -> Response:
    found = services(request)
    queue = await _find(found, name)
    return json_response(_with_usage(found, queue), headers={"ETag": etag(queue)})


@router.put(
    "/v1/queues/{name}",
    response_model=None,
    responses={200: {"model": QueueWithUsage}, 201: {"model": QueueWithUsage, "description": "Created"}},
    openapi_extra=body_of("QueuePut"),
)
@access(Access.ADMIN)
async def put_queue(request: Request, _caller: Caller, name: Name, if_match: IfMatch = None) -> Response:
    """Create the queue or replace its spec. Running jobs go on whatever the new limit is."""
    found = services(request)
    wanted = _parse(name, await json_body(request))
    for _ in range(_TRIES):
        try:
            queue, created = await _put(found, name, wanted, if_match)
        except (Conflict, AlreadyExists, NotFound):
            continue
        with contextlib.suppress(TimeoutError):
            version = queue.metadata.resource_version
            await found.deps.queues.at_least(version, timeout_s=READ_OWN_WRITE_S)
        return json_response(_with_usage(found, queue), status=201 if created else 200, headers={"ETag": etag(queue)})
    raise Problem(Code.CONFLICT, "The queue kept changing; try again.", retry_after_s=1)


@router.delete("/v1/queues/{name}", status_code=204, response_model=None)
@access(Access.ADMIN)
async def delete_queue(request: Request, _caller: Caller, name: Name, if_match: IfMatch = None) -> Response:
    """Delete a queue that no job which has not ended names."""
    found = services(request)
    queue = await _find(found, name)
    if not matches(if_match, etag(queue)):
        raise _stale(queue)
    if name == DEFAULT_QUEUE:
        raise Problem(Code.QUEUE_PROTECTED, "Queue 'default' always stays; give it a limit instead.")
    users = found.index.unended(name)
    if users:
        raise Problem(
            Code.QUEUE_IN_USE,
            f"{users} job(s) that have not ended use queue {name!r}; cancel them or wait for their end.",
        )
    try:
        await found.deps.store.delete(QUEUES, Key("", name), uid=queue.uid)
    except (NotFound, Conflict):
        raise not_found(f"queue {name!r}") from None
    await found.deps.queues.wait_for(
        lambda cache: (there := cache.get(Key("", name))) is None or there.uid != queue.uid,
        timeout_s=READ_OWN_WRITE_S,
    )
    return Response(status_code=204)


async def _put(found: Services, name: str, wanted: QueuePut, if_match: str | None) -> tuple[Queue, bool]:
    store = found.deps.store
    try:
        there = await store.get(QUEUES, Key("", name))
    except NotFound:
        if if_match is not None:
            raise not_found(f"queue {name!r}") from None
        return await store.create(QUEUES, Queue(metadata=ObjectMeta(name=name), spec=wanted.spec)), True
    if not matches(if_match, etag(there)):
        raise _stale(there)
    return await store.update(QUEUES, there.model_copy(update={"spec": wanted.spec})), False


async def _find(found: Services, name: str) -> Queue:
    queue = found.deps.queues.get(Key("", name))
    if queue is not None:
        return queue
    try:
        return await found.deps.store.get(QUEUES, Key("", name))
    except NotFound:
        raise not_found(f"queue {name!r}") from None


def _parse(name: str, body: bytes) -> QueuePut:
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        detail = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise invalid("/name", detail, place="path") from None
    data = parse_json(body)
    try:
        return QueuePut.model_validate_json(body, strict=True)
    except ValidationError as error:
        listed = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(listed, root=QueuePut, data=data) from None


def _with_usage(found: Services, queue: Queue) -> bytes:
    usage = {to_camel(name): value for name, value in asdict(found.scheduler.queue_usage(queue.metadata.name)).items()}
    return dump(queue)[:-1] + b',"usage":' + json.dumps(usage).encode() + b"}"


def _stale(queue: Queue) -> Problem:
    return Problem(
        Code.PRECONDITION_FAILED,
        "The queue is not as your If-Match says; read it again and decide anew.",
        headers={"ETag": etag(queue)},
    )
