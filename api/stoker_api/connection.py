"""One HTTP connection: uvicorn's protocol, with a bound on a request's head in bytes and in seconds.

Owns what a peer may do before there is a request; `listener.py` learns from it what the connection does. Never looks
at a route or a token. Made by `listener.py` for each accepted socket; a stream reaches it through its ASGI scope
(`LINE`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import socket
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .problems import MEDIA_TYPE, Problem, ProblemCode

if TYPE_CHECKING:
    from stoker_api.listener import Listener

LINE = "stoker.line"
"""In the ASGI scope: a weak reference to the request's `Connection`. A strong one would close a circle, and what a
connection held would wait for the collector."""
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
STREAM_BUFFER = 64 * 1024
"""A stream's send buffer in the kernel (which doubles it): what a follower that does not read costs."""
_LINGER_S = 1.0
_LINGER_BYTES = 1 << 20
_TOO_LONG = (
    f"A request's head has at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers; "
    "send less of it (cookies of other sites, a value that is no token)."
)


class _HeadTooLong(Exception):
    pass


class Connection(HttpToolsProtocol):
    def __init__(self, listener: Listener, since_s: float, **parts: Any) -> None:
        """`since_s`: when the peer came, by the loop's clock."""
        super().__init__(**parts)
        self._listener, self.since_s = listener, since_s
        self._undelivered = 0
        """Bytes parsed since the parser last had something for us: the part of a head that is there, mostly."""
        self._new = True
        self._too_long = self._refused = self._upgraded = self._streams = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._listener.waits(self, self.since_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.gone(self)
        self._listener.ends.call(functools.partial(super().connection_lost, exc))

    def data_received(self, data: bytes) -> None:
        if not self._new:
            self._take(data)
            return
        self._new = False
        self.transport.pause_reading()  # until its turn, which mostly is now
        self._listener.arrivals.call(functools.partial(self._arrive, data))

    def _arrive(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self._take(data)

    def _take(self, data: bytes) -> None:
        if self._refused:
            self._undelivered += len(data)
            if self._undelivered > _LINGER_BYTES:
                self.abort()
            return
        self._unset_keepalive_if_required()
        if self.answered:
            self._listener.waits(self, self.loop.time())
        self._undelivered += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._upgraded = True
                self._listener.gone(self)
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            if self._too_long:
                self.refuse(ProblemCode.HEADERS_TOO_LARGE, _TOO_LONG)
            else:
                self.refuse(ProblemCode.BAD_REQUEST, "This is no HTTP/1.1 request.")
        if self._undelivered > MAX_HEAD_BYTES and not (self._upgraded or self._refused):
            self.refuse(ProblemCode.HEADERS_TOO_LARGE, _TOO_LONG)

    # What the parser has found.

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._undelivered = 0
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._too_long = True
            raise _HeadTooLong
        self._streams = False
        if not self.flow.write_paused:
            self._listener.works(self)
        cast(dict[str, Any], self.scope)[LINE] = weakref.ref(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._undelivered = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._undelivered = 0
        super().on_message_complete()
        if self.answered and not (self.parser.should_upgrade() and self._should_upgrade()):
            # Its answer was quicker than its body.
            self.cycle.more_body = False
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.answered:  # a pipelined request is next
            return
        if self.cycle.more_body or self._undelivered:
            self._listener.waits(self, self.loop.time())
        else:
            self._rest()

    @property
    def answered(self) -> bool:
        """There was a request, and no answer is under way."""
        return self.cycle is not None and self.cycle.response_complete and not self.pipeline

    def _rest(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._listener.rests(self, known=self._known)

    @property
    def _known(self) -> bool:
        """Whether the newest request had a valid token."""
        state = cast(Mapping[str, Any], self.cycle.scope.get("state", {}))
        return not state.keys().isdisjoint(("principal", "pod_uid", "node"))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.cycle is not None and not self._streams:
            self._listener.rests(self, known=self._known)  # a peer that takes no answers is at rest, whatever it asked

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not (self._streams or self.answered):
            self._listener.works(self)

    # Ends.

    def too_slow(self) -> None:
        """The time for a head (or for the rest of a body whose answer is out) is over."""
        if self._undelivered and not self._refused and (self.cycle is None or self.answered):
            self.refuse(ProblemCode.REQUEST_TIMEOUT, "The request's head did not arrive in time; send it again.")
        else:
            self.abort()

    def refuse(self, code: ProblemCode, detail: str) -> None:
        """Answer by ourselves and close. What still comes is thrown away for a moment: closed upon unread bytes, a
        connection is reset, and the answer is lost."""
        self._refused = True
        self._listener.refused(code)
        if self.cycle is not None and not self.answered:
            if self.pipeline or self.cycle.response_started:
                self.abort()  # ours can't stand in the middle of another answer
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(refusal(code, detail))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.abort)
        else:
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    # For streams.

    async def push(self, part: bytes, within_s: float) -> bool:
        """One chunk of the answer under way; returns once the peer has taken it. False: there is no peer any more.

        Past uvicorn's `send`, which copies the part: what waits for peers that do not read is the same for all.
        Raises: TimeoutError.
        """
        if not self.transport.is_closing():
            self.transport.writelines([b"%x\r\n" % len(part), part])
            self.transport.write(b"\r\n")  # asyncio's `writelines` (Python 3.12, 3.13) pauses no writer; `write` does
        if self.flow.write_paused:
            async with asyncio.timeout(within_s):
                await self.flow.drain()
        return not self.transport.is_closing()

    def limit_buffers(self) -> None:
        """Keep little for a peer that does not read: by default the kernel takes megabytes. It may have left."""
        self._streams = True
        if self.transport.is_closing():
            return
        # 1, not 0: over TLS, asyncio and uvloop pause at 0 though nothing is left to send, and never resume.
        self.transport.set_write_buffer_limits(high=1)
        found = self.transport.get_extra_info("socket")
        if found is not None:
            # By a copy: uvloop's socket object only shows itself.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(found.fileno())) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER)


def refusal(code: ProblemCode, detail: str) -> bytes:
    """A whole answer for a peer whose request never reached the app."""
    trace_id = secrets.token_hex(16)
    body = json.dumps(Problem(code, detail).document(trace_id)).encode()
    head = (
        f"HTTP/1.1 {code.status} {code.summary}\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n"
        f"X-Trace-Id: {trace_id}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
