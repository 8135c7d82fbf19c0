"""Objects of no project that administrators keep (queues, runtimes): find, put, delete, and their bodies.

Owns what is the same for each kind; messages and further rules are the routes'. Called by
`routes/cluster_objects.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from stoker.spec.fields import DnsLabel
from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.quantity import NEW
from stoker.store.cache import WatchCache
from stoker.store.port import AlreadyExists, Conflict, NotFound, Store
from stoker_api.bodies import matches

from .body_parsing import parse_body
from .jobs.render import etag
from .jobs.submit import READ_OWN_WRITE_S
from .problems import Problem, ProblemCode, invalid, not_found

R = TypeVar("R", bound=Resource)
M = TypeVar("M", bound=BaseModel)

_NAME: TypeAdapter[str] = TypeAdapter(DnsLabel)
_TRIES = 8


def refuse_stale(obj: Resource, if_match: str | None, noun: str) -> None:
    """`noun`: what people call one. Raises: Problem (412)."""
    if not matches(if_match, etag(obj)):
        raise Problem(
            ProblemCode.PRECONDITION_FAILED,
            f"The {noun} is not as your If-Match says; read it again, then decide.",
            headers={"ETag": etag(obj)},
        )


def kept_changing(noun: str) -> Problem:
    return Problem(ProblemCode.CONFLICT, f"The {noun} kept changing; try again.", retry_after_s=1)


@dataclass(frozen=True)
class Objects(Generic[R]):
    """`noun`: what people call one."""

    store: Store
    cache: WatchCache[R]
    kind: Kind[R]
    noun: str

    def listed(self) -> list[R]:
        return sorted(self.cache.values(), key=lambda obj: obj.metadata.name)

    async def find(self, name: str) -> R:
        """Raises: Problem (404)."""
        found = self.cache.get(Key("", name))
        if found is not None:
            return found
        try:
            return await self.store.get(self.kind, Key("", name))
        except NotFound:
            raise self._missing(name) from None

    async def put(
        self, wanted: R, update: Callable[[R], R], if_match: str | None, before_create: Callable[[], Awaitable[None]]
    ) -> tuple[R, bool]:
        """`wanted` created (True), or what is there after `update`. Raises: Problem (404, 409, 412)."""
        for _ in range(_TRIES):
            try:
                done, created = await self._put(wanted, update, if_match, before_create)
            except (Conflict, AlreadyExists, NotFound):
                continue
            with contextlib.suppress(TimeoutError):
                await self.cache.at_least(done.metadata.resource_version, timeout_s=READ_OWN_WRITE_S)
            return done, created
        raise kept_changing(self.noun)

    async def delete(self, obj: R, if_match: str | None, *, waits: bool = False) -> bool:
        """Whether it is gone. `waits`: a finalizer keeps it for the moment. Raises: Problem (404, 409, 412)."""
        refuse_stale(obj, if_match, self.noun)
        try:
            await self.store.delete(self.kind, obj.key, uid=obj.uid)
        except NotFound:
            raise self._missing(obj.metadata.name) from None
        except Conflict:
            raise kept_changing(self.noun) from None
        with contextlib.suppress(TimeoutError):
            await self.cache.wait_for(
                lambda cache: (
                    (there := cache.get(obj.key)) is None
                    or there.uid != obj.uid
                    or (waits and there.metadata.deletion_timestamp is not None)
                ),
                timeout_s=READ_OWN_WRITE_S,
            )
        there = self.cache.get(obj.key)
        return there is None or there.uid != obj.uid

    async def _put(
        self, wanted: R, update: Callable[[R], R], if_match: str | None, before_create: Callable[[], Awaitable[None]]
    ) -> tuple[R, bool]:
        try:
            there = await self.store.get(self.kind, wanted.key)
        except NotFound:
            if if_match is not None:
                raise self._missing(wanted.metadata.name) from None
            await before_create()
            return await self.store.create(self.kind, wanted), True
        refuse_stale(there, if_match, self.noun)
        return await self.store.update(self.kind, update(there)), False

    def _missing(self, name: str) -> Problem:
        return not_found(f"{self.noun} {name!r}")


def parse_put(model: type[M], name: str, body: bytes) -> M:
    """The body of a PUT. Raises: Problem (400, 422)."""
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        detail = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise invalid("/name", detail, place="path") from None
    return parse_body(model, body, NEW)
