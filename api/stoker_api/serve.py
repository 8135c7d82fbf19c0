"""Serves the api on a socket, and stops it without waiting for streams that never end.

Owns uvicorn's and TLS' settings; `listener.py` accepts connections. Called by `stoker up` and the api's main file:
`await serve(app, host, port)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from stoker.store.clock import Clock
from stoker_api.listener import ConnectionLimits, Listener, raise_open_files

from .connection import Connection
from .sessions.socket import MAX_MESSAGE, PING_EVERY_S, PONG_WITHIN_S, SessionSocket

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
LOOK_EVERY_S = 20.0
"""For a renewed certificate: who renews one (cert-manager, say) only replaces files."""
_GRACE_S = 5
_STUCK_PEER_MS = 60_000
_BACKLOG = 2048
_LEAST_SHARE = 8
"""Connections that one caller may have at work in streams, and as many in bodies, however few there are in all."""
_Stamp = tuple[tuple[int, int, int], ...]


class BindError(OSError):
    """The address can't be listened on; the text says what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0: any free one (`socket.getsockname()[1]`). Raises: BindError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio switches Nagle's algorithm off only then, and an answer in two parts would else
    # wait 40 ms for the client's delayed acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A follower that takes nothing is cut off by us; the kernel then drops what it never took.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_PEER_MS)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise BindError(_why(host, port, error)) from error
    sock.setblocking(False)
    return sock


async def serve(
    app: FastAPI,
    host: str = LOOPBACK,
    port: int = 0,
    *,
    sock: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
    on_ready: Callable[[int], None] | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until cancelled, then stop gracefully: streams end at once, requests get a few seconds.

    `on_ready(port)` is called once requests are answered. Leaves signals alone: they are the process's.
    Raises: BindError.
    """
    listening = bind(host, port) if sock is None else sock
    server = _Server(app, tls, on_ready, limits or ConnectionLimits())
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        server.should_exit = True
        await task
        raise
    finally:
        listening.close()


class _Server(uvicorn.Server):
    def __init__(
        self,
        app: FastAPI,
        tls: ssl.SSLContext | None,
        on_ready: Callable[[int], None] | None,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws=SessionSocket,
                ws_max_size=MAX_MESSAGE,
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=PONG_WITHIN_S,
                ws_per_message_deflate=False,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self.config.load()
        self._app, self._on_ready = app, on_ready
        most = raise_open_files() if limits.most is None else limits.most
        # Streams and bodies that are on their way are never closed for others.
        hub, arriving = app.state.services.hub, app.state.arriving
        hub.most = min(hub.most, most // 2)
        share = max(_LEAST_SHARE, most // 8)
        hub.of_caller, arriving.most = min(hub.of_caller, share), min(arriving.most, share)
        self._listener = Listener(
            most,
            limits.head_s,
            tls,
            app.state.services.metrics,
            lambda: len(self.server_state.connections),
            app.state.services.under_way,
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.started or not sockets:
            return
        self._accepting = asyncio.create_task(self._listener.run(sockets[0], self._connection))
        if self._on_ready is not None:
            self._on_ready(sockets[0].getsockname()[1])

    def _connection(self, since_s: float) -> Connection:
        return Connection(
            self._listener, since_s, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def on_tick(self, counter: int) -> bool:
        if self._accepting.done():  # it never ends by itself: better to crash than to accept nothing
            self._accepting.result()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._app.state.services.hub.close()
        await self._app.state.services.sessions.close()  # with their own close reasons, before uvicorn's
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI,
    host: str = LOOPBACK,
    port: int = 0,
    *,
    tls: ssl.SSLContext | None = None,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[int]:
    """Serve while inside; gives the port."""
    sock = bind(host, port)
    ready = asyncio.Event()
    task = asyncio.create_task(serve(app, sock=sock, tls=tls, on_ready=lambda _: ready.set(), limits=limits))
    task.add_done_callback(lambda _: ready.set())
    try:
        await ready.wait()
        if task.done():
            task.result()
        yield sock.getsockname()[1]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _why(host: str, port: int, error: Exception) -> str:
    where = f"{host}:{port}"
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"{where} is in use by another process; stop it or choose another port (0: any free one)"
        case errno.EACCES:
            return f"{where} may not be used by this user; choose a port above 1023"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine; choose 127.0.0.1 or one that is"
        case _:
            return f"can't listen on {where}: {error}"


@dataclass
class Certificate:
    """Raises: OSError, ssl.SSLError when the files can't be used at the start; later ones are logged and left aside."""

    cert: Path
    key: Path
    context: ssl.SSLContext = field(init=False)
    """Give it to the server; new connections meet the newest certificate."""
    _seen: _Stamp = field(init=False)

    def __post_init__(self) -> None:
        self._seen = self._stamp()
        self.context = self._fresh()

    async def follow(self, clock: Clock, every_s: float = LOOK_EVERY_S) -> None:
        """Keep the context current until cancelled."""
        while True:
            await clock.sleep(every_s)
            self.refresh()

    def refresh(self) -> None:
        """Read the files again if they changed."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            self._fresh()  # a certificate without its key would break the context that is in use
            self.context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate in %s is not read again: %s", self.cert, error)
            return
        self._seen = stamp
        log.info("the certificate in %s was renewed", self.cert)

    def _fresh(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self.cert, self.key)
        return context

    def _stamp(self) -> _Stamp:
        found = (path.stat() for path in (self.cert, self.key))
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)
