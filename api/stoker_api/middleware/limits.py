"""Bounds on what a request may cost before a route sees it: bytes of its body, seconds until the answer starts, how
many bodies of one caller may be on their way at once, and how many requests start in a round of the event loop.

A body that is too long is refused at once; `connection.py` takes its rest for a while, so that a client that is still
sending gets the answer, and closes it first when connections run short. Streams are bounded by their own rules once
started. A route that needs other bounds than most declares them with `@bounded(...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker_api.pacing import Rounds, UnderWay
from stoker_api.problems import Problem, ProblemCode

MAX_BODY = 1 << 20
_OWN_BODIES = 128
"""More than any client sends at once (pools of connections have 10 to 100), and about 1 % of the connections."""
_REPORTERS_BODIES = 16
"""Of a worker or an exporter: it sends three at most, and a tenant may have hundreds of workers."""
_RETRY_S = 5
_USER = "user "
_ATTRIBUTE = "__stoker_bounds__"
_HEALTH = frozenset({"/livez", "/readyz"})
_STREAMS = ("/logs", "/events")

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


class Arriving:
    """Bodies that are not complete yet, by caller. `most`: of one caller."""

    def __init__(self) -> None:
        self.most = _OWN_BODIES
        self._of_caller: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, caller: str) -> Iterator[None]:
        """Count one more of this caller's while inside."""
        self._of_caller[caller] += 1
        try:
            yield
        finally:
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]

    def has_room(self, caller: str) -> bool:
        most = self.most if caller.startswith(_USER) else min(self.most, _REPORTERS_BODIES)
        return self._of_caller[caller] < most


class _TooLarge(Exception):
    pass


class _TooManyBodies(Exception):
    pass


class Limits:
    """`routes`: all there are, for the bounds that some of them declare."""

    def __init__(
        self, app: ASGIApp, arriving: Arriving, routes: Iterable[APIRoute] = (), bounds: Bounds | None = None
    ) -> None:
        self._app, self._arriving = app, arriving
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
        counted = False
        arriving = contextlib.ExitStack()

        async def bounded_receive() -> Message:
            nonlocal received, complete, counted
            if complete:
                return await receive()
            # A route reads the body once its caller is known; one without a token never gets there.
            if not counted and self._arriving.has_room(caller := _caller(scope.get("state", {}))):
                counted = True
                arriving.enter_context(self._arriving.held(caller))
            try:
                async with asyncio.timeout(bounds.silence_s if counted else 0.0):  # 0: what is here already
                    message = await receive()
            except TimeoutError:
                raise TimeoutError if counted else _TooManyBodies from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > bounds.max_body:
                raise _TooLarge
            if complete:
                arriving.close()
            elif not counted:
                raise _TooManyBodies
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
            problem = Problem(
                ProblemCode.BODY_TOO_LARGE, f"The body is over {bounds.max_body} bytes; {bounds.too_large}."
            )
            if _expects_continue(scope):
                problem.headers["Connection"] = "close"  # whether its body comes now is the client's choice
        except _TooManyBodies:
            if started:
                raise
            problem = Problem(
                ProblemCode.TOO_MANY_OWN_BODIES,
                "Too many request bodies of this caller are incomplete; finish sending those, then try again.",
                headers={"Connection": "close"},
                retry_after_s=_RETRY_S,
            )
        except TimeoutError:
            if started:
                raise
            if complete:
                problem = Problem(ProblemCode.UNAVAILABLE, "The answer took too long; try again.", retry_after_s=2)
            else:
                problem = Problem(ProblemCode.REQUEST_TIMEOUT, "The body did not arrive in time; send it again.")
            problem.headers["Connection"] = "close"
        finally:
            arriving.close()
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


def _caller(state: Mapping[str, Any]) -> str:
    """The caller that `access.py` found behind the request's token."""
    if "principal" in state:
        return f"{_USER}{state['principal'].name}"
    return f"worker {state['pod_uid']}" if "pod_uid" in state else f"node {state.get('node')}"


class Starts:
    """Requests start a few at a time, so that a wave of them does not stop those that are under way.

    Streams have a lane of their own, since they come in waves; probes of health never wait. Refuses nothing.
    """

    def __init__(self, app: ASGIApp, under_way: UnderWay) -> None:
        self._app, self._under_way = app, under_way
        self._streams, self._others = Rounds(1, rest_s=0.002, under_way=under_way), Rounds(3)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].endswith(_STREAMS):
            await self._streams.turn()
            await self._app(scope, receive, send)
        else:
            with self._under_way.one():
                if scope["path"] not in _HEALTH:
                    await self._others.turn()
                await self._app(scope, receive, send)
