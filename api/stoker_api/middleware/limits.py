"""Bounds on what a request may cost before a route sees it: bytes of its body, seconds until the answer starts.

A body that is too long is read to its end (within reason) and thrown away before 413 is sent: a client that is still
sending would else meet a reset connection instead of the answer. Streams are bounded by their own rules once started.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker_api.problems import Code, Problem

MAX_BODY = 1 << 20
_MAX_DRAIN = 64 << 20
_DRAIN_S = 10.0


class _TooLarge(Exception):
    pass


class Limits:
    def __init__(
        self, app: ASGIApp, max_body: int = MAX_BODY, timeout_s: float = 30.0, body_timeout_s: float = 15.0
    ) -> None:
        self._app = app
        self._max_body = max_body
        self._timeout_s = timeout_s
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem: Problem
        started = False
        received = 0
        complete = False

        async def bounded_receive() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            async with asyncio.timeout(self._body_timeout_s):
                message = await receive()
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._max_body:
                raise _TooLarge
            return message

        async def watched_send(message: Message) -> None:
            nonlocal started
            if not started:
                started = True
                deadline.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                if _content_length(scope) > self._max_body:
                    raise _TooLarge
                await self._app(scope, bounded_receive, watched_send)
                return
        except _TooLarge:
            if started:
                raise
            if not complete and not _expects_continue(scope):
                await _drain(receive)
            problem = Problem(
                Code.BODY_TOO_LARGE,
                f"The body is over {self._max_body} bytes; keep code and data out of the job and name where they are.",
            )
        except TimeoutError:
            if started:
                raise
            if complete:
                problem = Problem(Code.UNAVAILABLE, "The answer took too long; try again.", retry_after_s=2)
            else:
                problem = Problem(Code.REQUEST_TIMEOUT, "The body did not arrive in time; send it again.")
        problem.headers["Connection"] = "close"
        await problem.response(scope)(scope, receive, send)


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
