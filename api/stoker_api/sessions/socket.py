"""The server's end of a WebSocket: uvicorn's, with what a relay needs beside it.

Owns two differences. A lost connection sets an event in the ASGI scope at once, also while reading is paused
(back-pressure); and a peer that is slow is not taken for a dead one: it answers no ping while it does not read, and
neither does one that we do not read from. Named in `serve.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from asyncio.transports import BaseTransport

    from uvicorn._types import ASGISendEvent

LOST = "stoker.lost"
"""In the ASGI scope: an `asyncio.Event`, set once the connection is gone."""
MAX_MESSAGE = 128 * 1024
PING_EVERY_S = 20.0
PONG_WITHIN_S = 20.0
SHUTDOWN_S = 1.0
PATIENCE_S = 600.0
"""How long a peer may take nothing of what was sent to it (a pager that waits for its reader)."""


class SessionSocket(WebSocketsSansIOProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lost = asyncio.Event()
        self._received_at = self.loop.time()
        self._sent_since = False

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        found = transport.get_extra_info("socket")
        if found is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # By a copy: uvloop's socket object only shows itself.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(found.fileno())) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PATIENCE_S * 1000))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received_at, self._sent_since = self.loop.time(), False
        super().data_received(data)

    async def run_asgi(self) -> None:
        cast(dict[str, Any], self.scope)[LOST] = self._lost
        await super().run_asgi()

    async def send(self, message: ASGISendEvent) -> None:
        self._sent_since = self._sent_since or message["type"] == "websocket.send"
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # by a refusal; uvicorn would log it as one that was left undone

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(SHUTDOWN_S, self.transport.abort)  # a peer that reads nothing delays no stop

    def keepalive_timeout(self) -> None:
        if not self.close_sent and not self.transport.is_closing() and self._may_be_slow():
            self.pong_timer = None
            self.send_keepalive_ping()  # to a peer that is gone this ends the connection: its system refuses it
            return
        super().keepalive_timeout()

    def _may_be_slow(self) -> bool:
        if self.read_paused:
            return True  # its answer may lie where we do not read
        return self._sent_since and self.loop.time() - self._received_at < PATIENCE_S
