"""Carries messages between two WebSockets until one side ends: no message is held but the one under way.

Back-pressure is the sockets' own: a message is read only once the one before it was taken. Knows no session, no job.
Called by `rendezvous.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.websockets import WebSocket, WebSocketDisconnect

from .socket import LOST

NORMAL, GOING_AWAY, POLICY, BROKEN, RESTART = 1000, 1001, 1008, 1011, 1012
"""Source: RFC 6455 §7.4.1 and IANA's registry of close codes."""
DRAIN_S = 30.0
"""How long the caller may take for what a lost worker had still sent."""
EXIT_CODE_S = 2.0
"""How long a session that must end may still bring its exit code."""
_REASON_BYTES = 120  # a control frame has room for 123
_CLOSE_S = 2.0


class SessionEnd(NamedTuple):
    """Why a session is over, as both sides see it."""

    code: int
    reason: str


BROKE_OFF = SessionEnd(BROKEN, "the worker's side of the session broke off")


@dataclass(eq=False)
class Side:
    """One accepted WebSocket."""

    socket: WebSocket
    lost: asyncio.Event

    @classmethod
    def of(cls, socket: WebSocket) -> Side:
        return cls(socket, socket.scope.get(LOST) or asyncio.Event())

    async def receive(self) -> str | bytes:
        """The next message. Raises: WebSocketDisconnect."""
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or BROKEN, message.get("reason"))
        found: str | bytes | None = message.get("text")
        return found if found is not None else bytes(message["bytes"])

    async def send(self, message: str | bytes) -> None:
        """Returns once the connection has room again. Raises: WebSocketDisconnect."""
        kind = "text" if isinstance(message, str) else "bytes"
        await self.socket.send({"type": "websocket.send", kind: message})

    async def close(self, end: SessionEnd) -> None:
        """Sends the reason if the peer still reads."""
        reason = end.reason.encode()[:_REASON_BYTES].decode(errors="ignore")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.socket.close(end.code, reason)


class _Over(NamedTuple):
    """Which side ended, and its close code."""

    side: Side
    code: int


async def relay(
    client: Side, worker: Side, end_order: asyncio.Future[SessionEnd], moved: Callable[[], None]
) -> SessionEnd:
    """Until a side ends, or `end_order` says that it must be over. `moved` is called for each message.

    What the worker had sent before its end is passed on first: the exit code is in its last message.
    """
    to_worker = asyncio.create_task(_pump(client, worker, moved))
    to_client = asyncio.create_task(_pump(worker, client, moved))
    client_lost = asyncio.create_task(client.lost.wait())
    worker_lost = asyncio.create_task(worker.lost.wait())
    tasks = (to_worker, to_client, client_lost, worker_lost)

    def client_gone() -> bool:
        ended = (pump.result() for pump in (to_worker, to_client) if pump.done())
        return client_lost.done() or any(over.side is client for over in ended)

    try:
        awaited: set[asyncio.Future[Any]] = {*tasks, end_order}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not client_gone():
            patience_s = DRAIN_S
            if end_order.done():
                patience_s = 0 if end_order.result().code == RESTART else EXIT_CODE_S
            await asyncio.wait({to_client, client_lost}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if client_gone():
            return SessionEnd(NORMAL, "the caller has left")
        if to_client.done() and to_client.result().code == NORMAL:
            return SessionEnd(NORMAL, "")
        return end_order.result() if end_order.done() else BROKE_OFF
    finally:
        for task in tasks:
            task.cancel()


async def _pump(source: Side, sink: Side, moved: Callable[[], None]) -> _Over:
    """Pass messages on until either side ends."""
    while True:
        try:
            message = await source.receive()
        except WebSocketDisconnect as end:
            return _Over(source, end.code)
        try:
            await sink.send(message)
        except WebSocketDisconnect as end:
            return _Over(sink, end.code)
        moved()
