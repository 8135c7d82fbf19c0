"""Bounds on what a request may cost before a route sees it: bytes of its body, seconds until the answer starts.

A body that is too long is read to its end (within reason) and thrown away before 413 is sent: a client that is still
sending would else meet a reset connection instead of the answer. Streams are bounded by their own rules once started.
A route that needs other bounds than most declares them with `@bounded(...)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker_api.problems import Code, Problem

MAX_BODY = 1 << 20
_MAX_DRAIN = 64 << 20
_DRAIN_S = 10.0
_ATTRIBUTE = "__stoker_bounds__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Units: bytes, seconds."""

    max_body: int = MAX_BODY
    answer_s: float = 30.0
    """Until the answer starts, the body's coming included."""
    silence_s: float = 15.0
    """Between two pieces of the body."""
    too_large: str = "keep code and data out of the job and name where they are"
    """What to do about a body that is too long."""


def bounded(bounds: Bounds) -> Callable[[F], F]:
    """Declare an endpoint's own bounds."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, bounds)
        return endpoint

    return declare


class _TooLarge(Exception):
    pass


class Limits:
    """`routes`: all there are, for the bounds that some of them declare."""

    def __init__(self, app: ASGIApp, routes: Iterable[APIRoute] = (), bounds: Bounds | None = None) -> None:
        self._app = app
        self._bounds = bounds or Bounds()
        self._own: list[tuple[APIRoute, Bounds]] = [
            (route, getattr(route.endpoint, _ATTRIBUTE)) for route in routes if hasattr(route.endpoint, _ATTRIBUTE)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bounds = self._bounds_of(scope)
        problem: Problem
        started = False
        received = 0
        complete = False

        async def bounded_receive() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            async with asyncio.timeout(bounds.silence_s):
                message = await receive()
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > bounds.max_body:
                raise _TooLarge
            return message

        async def watched_send(message: Message) -> None:
            nonlocal started
            if not started:
                started = True
                deadline.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(bounds.answer_s) as deadline:
                if _content_length(scope) > bounds.max_body:
                    raise _TooLarge
                await self._app(scope, bounded_receive, watched_send)
                return
        except _TooLarge:
            if started:
                raise
            if not complete and not _expects_continue(scope):
                await _drain(receive)
            problem = Problem(Code.BODY_TOO_LARGE, f"The body is over {bounds.max_body} bytes; {bounds.too_large}.")
        except TimeoutError:
            if started:
                raise
            if complete:
                problem = Problem(Code.UNAVAILABLE, "The answer took too long; try again.", retry_after_s=2)
            else:
                problem = Problem(Code.REQUEST_TIMEOUT, "The body did not arrive in time; send it again.")
        problem.headers["Connection"] = "close"
        await problem.response(scope)(scope, receive, send)

    def _bounds_of(self, scope: Scope) -> Bounds:
        for route, own in self._own:
            if scope["method"] in (route.methods or ()) and route.path_regex.match(scope["path"]):
                return own
        return self._bounds


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _expects_continue(scope: Scope) -> bool:
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"])


async def _drain(receive: Receive) -> None:
    taken = 0
    try:
        async with asyncio.timeout(_DRAIN_S):
            while taken <= _MAX_DRAIN:
                message = await receive()
                taken += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
