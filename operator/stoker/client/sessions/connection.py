"""A session's WebSocket: opened with the client's server and token, ready once the worker has answered.

Owns the handshake, its refusals as the client's errors, the wait for the worker and the message of a lost connection.
Never follows a redirect (the token would travel) and reaches a loopback server through no proxy, as `wire.py`. Called
by `execution.py`, `forwarding.py` and `stoker.cli.sessions.execute`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from stoker import __version__
from stoker.client.config import Endpoint
from stoker.client.connections import tls_context
from stoker.client.errors import ApiError, StokerError, Unreachable
from stoker.client.wire import refusal

SUBPROTOCOL = Subprotocol("v1.session.stoker.dev")
PIECE_BYTES = 32 * 1024
"""What is read at once to be sent: a message may have 64 KiB."""
SAY_AFTER_S = 2.5
"""A worker on this machine looks for sessions once a second: only waiting beyond that is worth a word."""
_OPEN_S = 30.0
_MAX_MESSAGE = 256 * 1024
_PING_S = 20.0
TYPIST_S, READER_S = 60.0, 600.0
"""How long a ping may stay unanswered, as it does while one side does not take what the other sends: not so long for a
person at a terminal as for a pipe into a pager."""


class Broken(StokerError):
    """The session ended before it was done; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkerTarget:
    """A worker of a job, at a server."""

    endpoint: Endpoint
    project: str
    job: str
    worker: int = 0

    def url(self, kind: str) -> str:
        base = "ws" + self.endpoint.url.removeprefix("http")
        job = f"/v1/projects/{quote(self.project, safe='')}/jobs/{quote(self.job, safe='')}"
        return f"{base}{job}/{kind}?worker={self.worker}"


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@contextlib.asynccontextmanager
async def session(
    target: WorkerTarget,
    kind: str,
    opening: Mapping[str, Any],
    say: Callable[[str], None],
    patience_s: float = READER_S,
) -> AsyncIterator[ClientConnection]:
    """A session whose worker is ready. `say` gets a line for people when that takes a while.

    Raises: ApiError with the server's message, Unreachable, Broken.
    """
    socket = await _open(target, kind, patience_s)
    try:
        await _ready(socket, target, opening, say)
        yield socket
    except ConnectionClosed as closed:
        raise lost(closed) from None
    finally:
        await socket.close()


def lost(closed: ConnectionClosed) -> StokerError:
    """What to say of a connection that ended by itself."""
    if closed.rcvd is None:
        return Unreachable("the connection to the server was lost; what ran in the session is ended")
    return Broken(f"the session was ended: {closed.rcvd.reason or 'without a reason'}")


async def _open(target: WorkerTarget, kind: str, patience_s: float) -> ClientConnection:
    endpoint = target.endpoint
    headers = {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    secure: dict[str, Any] = {"ssl": tls_context()} if endpoint.url.startswith("https:") else {}
    try:
        return await _Connect(
            target.url(kind),
            subprotocols=[SUBPROTOCOL],
            additional_headers=headers,
            user_agent_header=f"stoker/{__version__}",
            compression=None,
            proxy=None if endpoint.loopback else True,
            max_size=_MAX_MESSAGE,
            open_timeout=_OPEN_S,
            close_timeout=2.0,
            ping_interval=_PING_S,
            ping_timeout=patience_s,
            **secure,
        )
    except InvalidStatus as error:
        raise _refused(endpoint, error) from None
    except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else _message(error)
        raise Unreachable(f"can't reach the Stoker server at {endpoint.url}: {why}") from None


async def _ready(
    socket: ClientConnection, target: WorkerTarget, opening: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    await socket.send(json.dumps(opening))
    answer = asyncio.ensure_future(socket.recv())
    try:
        await asyncio.wait({answer}, timeout=SAY_AFTER_S)
        if not answer.done():
            say(f"waiting for worker {target.worker} of {target.job} to come …")
        found = _document(await answer)
    finally:
        answer.cancel()
    if found.get("ready") is not True:
        raise Broken(str(found.get("message") or "the worker does not say why it refuses"))


def _document(message: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(message) if isinstance(message, str) else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Broken("the worker sent an answer this client can't read; one of them may be too old")
    return found


def _refused(endpoint: Endpoint, error: InvalidStatus) -> ApiError:
    response = error.response
    if 300 <= response.status_code < 400:
        where = response.headers.get("Location", "elsewhere")
        return ApiError(response.status_code, "Redirected", f"{endpoint.url} redirects to {where}; name that server")
    return refusal(response.status_code, bytes(response.body or b""), endpoint.url)


def _message(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error):
        return "connection refused"
    return str(error) or type(error).__name__
