"""The outermost layer: gives every request a trace id, times it by route, and answers for what was not caught.

An unexpected exception is logged with the trace id and answered as 500 without internals. Routes appear
in metrics by template, never by path: labels stay few.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker_api.metrics import ApiMetrics
from stoker_api.problems import TRACE_ID, Problem, ProblemCode

log = logging.getLogger(__name__)

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observe:
    def __init__(self, app: ASGIApp, metrics: ApiMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._handshake(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        trace_id = scope[TRACE_ID] = _trace_id(scope)
        started = False

        async def observed_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start" and not started:
                started = True
                message["headers"] = _with_ours(message.get("headers", ()), trace_id)
                method = scope["method"] if scope["method"] in _METHODS else "other"
                route = getattr(scope.get("route"), "path", "none")
                self._metrics.observe(route, method, message["status"], time.perf_counter() - begun)
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        except Exception:
            log.exception("request %s: %s %s failed", trace_id, scope["method"], scope["path"])
            if started:
                raise  # part of an answer is out: only a cut connection shows the client that it is not whole
            problem = Problem(
                ProblemCode.INTERNAL_ERROR, f"The log of the server has the details under trace {trace_id}."
            )
            await problem.response(scope)(scope, receive, observed_send)

    async def _handshake(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket, timed up to its handshake; one without a route is refused like a path that is not there."""
        begun = time.perf_counter()
        trace_id = scope[TRACE_ID] = _trace_id(scope)
        answered = False

        async def observed_send(message: Message) -> None:
            nonlocal answered
            if answered:
                await send(message)
                return
            if message["type"] == "websocket.close":
                detail = f"There is nothing at {scope['path'][:200]}; docs/api.md lists the routes."
                await Problem(ProblemCode.NOT_FOUND, detail).response(scope)(scope, receive, observed_send)
                return
            answered = True
            status = 101
            if message["type"] == "websocket.http.response.start":
                status = message["status"]
                message["headers"] = _with_ours(message.get("headers", ()), trace_id)
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.observe(route, "GET", status, time.perf_counter() - begun)
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        except Exception:
            log.exception("request %s: WebSocket %s failed", trace_id, scope["path"])
            if answered:
                raise
            problem = Problem(
                ProblemCode.INTERNAL_ERROR, f"The log of the server has the details under trace {trace_id}."
            )
            await problem.response(scope)(scope, receive, observed_send)


def _with_ours(headers: Iterable[tuple[bytes, bytes]], trace_id: str) -> list[tuple[bytes, bytes]]:
    """Nothing is kept by caches, unless the route says what may be."""
    found = [*headers, (b"x-trace-id", trace_id.encode()), (b"x-content-type-options", b"nosniff")]
    if all(name != b"cache-control" for name, _ in found):
        found.append((b"cache-control", b"no-store"))
    return found


def _trace_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"traceparent":
            match = _TRACEPARENT.fullmatch(value)
            if match:
                return match[1].decode()
    return secrets.token_hex(16)
