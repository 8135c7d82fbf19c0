"""`stoker port-forward`: local ports that are a worker's; all connections to one share one session.

Owns the listening, the connections and their halves. A local program that does not read is buffered up to
`AHEAD_BYTES`; then it holds up the others of its port, since they share one stream. Called by `stoker port-forward`
and `Client.port_forward`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from stoker.client.errors import BadInput

from .background import Background
from .connection import PIECE_BYTES, WorkerTarget, session

AHEAD_BYTES = 1 << 20
_BACKLOG = 128
_OPEN, _DATA, _END, _RESET = range(4)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """`local` 0: any free port."""

    local: int
    remote: int

    @classmethod
    def parse(cls, text: str) -> Forwarded:
        """`6006`, `16006:6006`, `:6006` (any free one here). Raises: BadInput."""
        local, colon, remote = text.rpartition(":")
        try:
            found = cls(int(local or 0) if colon else int(remote), int(remote))
        except ValueError:
            found = cls(-1, -1)
        if not (0 <= found.local < 1 << 16 and 0 < found.remote < 1 << 16):
            raise BadInput(f"{text!r} is not a port; write 6006, or LOCAL:PORT as in 16006:6006")
        return found


def forward(target: WorkerTarget, wanted: Sequence[Forwarded], address: str, say: Callable[[str], None]) -> None:
    """Forward until interrupted. Raises: StokerError, KeyboardInterrupt."""
    asyncio.run(_forward(target, wanted, address, say))


@contextlib.contextmanager
def forwarded(target: WorkerTarget, wanted: Forwarded, address: str) -> Iterator[int]:
    """The port here, for as long as it is forwarded. Raises: StokerError, at its end too where it broke meanwhile."""
    ready: Future[None] = Future()
    with contextlib.closing(_listen(address, wanted.local)) as sock, Background() as background:
        port: int = sock.getsockname()[1]
        forwarding = _forward_one(target, wanted, sock, lambda text: None, lambda: ready.set_result(None))
        running = background.start(forwarding)
        wait((running, ready), return_when=FIRST_COMPLETED)
        if running.done():
            running.result()
        yield port
        if running.done():
            running.result()


async def _forward(target: WorkerTarget, wanted: Sequence[Forwarded], address: str, say: Callable[[str], None]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        # All of them before the first session: a port that is taken is reported at once.
        socks = [stack.enter_context(contextlib.closing(_listen(address, one.local))) for one in wanted]
        try:
            async with asyncio.TaskGroup() as tasks:
                for one, sock in zip(wanted, socks, strict=True):
                    tasks.create_task(_forward_one(target, one, sock, say))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None


async def _forward_one(
    target: WorkerTarget,
    wanted: Forwarded,
    sock: socket.socket,
    say: Callable[[str], None],
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    opening = {"kind": "forward", "port": wanted.remote}
    async with (
        session(target, "portforward", opening, say) as ready,
        _Port(ready, wanted.remote, say).serving(sock) as port,
    ):
        host, number = sock.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        say(f"forwarding {host}:{number} -> {target.job} worker {target.worker}:{wanted.remote}")
        on_ready()
        await port.carry()


class _Connection:
    """One local connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.ended = asyncio.Event()
        """The worker's side sends no more, or no one takes it."""
        self.broken = False
        """The local program has left before all of it was taken."""


class _Port:
    def __init__(self, ready: ClientConnection, remote: int, say: Callable[[str], None]) -> None:
        self._session, self._remote, self._say = ready, remote, say
        self._connections: dict[int, _Connection] = {}
        self._newest = 0
        self._said = ""

    @contextlib.asynccontextmanager
    async def serving(self, sock: socket.socket) -> AsyncIterator[_Port]:
        server = await asyncio.start_server(self._accepted, sock=sock)
        try:
            yield self
        finally:
            server.close()
            for connection in self._connections.values():
                connection.writer.transport.abort()

    async def carry(self) -> None:
        """Bring what the worker sends to the local connections. Raises: ConnectionClosed."""
        while True:
            message = await self._session.recv()
            if not isinstance(message, bytes) or len(message) < 5:
                continue
            kind, number, data = message[0], int.from_bytes(message[1:5]), message[5:]
            connection = self._connections.get(number)
            if connection is None:
                continue  # it was reset while this was on its way
            if kind == _DATA:
                await self._bring(connection, data)
            elif kind == _END:
                with contextlib.suppress(OSError):
                    connection.writer.write_eof()
                connection.ended.set()
            elif kind == _RESET:
                self._forget(number)
                self._report(data)

    async def _bring(self, connection: _Connection, data: bytes) -> None:
        if connection.broken:
            return
        try:
            connection.writer.write(data)
            await connection.writer.drain()
        except OSError:
            connection.broken = True
            connection.ended.set()  # its own task informs the worker

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._newest = number = self._newest % 0xFFFFFFFF + 1
        connection = self._connections[number] = _Connection(writer)
        writer.transport.set_write_buffer_limits(high=AHEAD_BYTES)
        with contextlib.suppress(ConnectionClosed):  # `carry` says so
            try:
                await self._send(_OPEN, number)
                while data := await reader.read(PIECE_BYTES):
                    await self._send(_DATA, number, data)
                await self._send(_END, number)
                await connection.ended.wait()
                if connection.broken:
                    raise ConnectionResetError
                writer.close()
                await writer.wait_closed()
            except OSError:
                if number in self._connections:
                    await self._send(_RESET, number)
            finally:
                self._forget(number)

    async def _send(self, kind: int, number: int, data: bytes = b"") -> None:
        await self._session.send(bytes((kind,)) + number.to_bytes(4) + data)

    def _forget(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.ended.set()
            connection.writer.transport.abort()

    def _report(self, reason: bytes) -> None:
        """Why the worker refused a connection, once for each reason: a browser tries again and again."""
        text = reason.decode("utf-8", "replace")
        if text and text != self._said:
            self._said = text
            self._say(f"port {self._remote}: {text}")


def _listen(address: str, port: int) -> socket.socket:
    """Raises: BadInput."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise BadInput(f"can't listen on {address}:{port}: {error.strerror}; choose another by LOCAL:PORT") from None
    sock.setblocking(False)
    return sock
