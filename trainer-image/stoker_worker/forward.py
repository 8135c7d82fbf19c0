"""`stoker port-forward`: connections to a port of the worker's own loopback, all of them carried over one session.

Owns the connections and what was sent for them and not taken yet. Never touches the WebSocket but by the `send` it is
given. Called by the session's loop (`session`).

Messages: what it is, four bytes of the connection's number (the caller's choice), then data.
"""

from __future__ import annotations

import errno
import os
import select
import socket

MYPY = False
if MYPY:
    from typing import Callable

OPEN, DATA, END, RESET = range(4)
READ_BYTES = (1 << 16) - 5  # with the head: 64 KiB
HOSTS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
MOST = 256
WAITING_BYTES = 1 << 20
"""Once so much waits for one connection, nothing more is taken for any: they share one stream."""


class _Connection:
    """One connection on its way or open."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sock: socket.socket | None = None
        self.connecting = True
        self.left = list(HOSTS)
        self.waiting = bytearray()
        self.their_end = False
        """The caller sends no more."""
        self.our_end = False
        """The port's side sends no more."""


class Forward:
    def __init__(self, port: int, send: Callable[[bytes], None]) -> None:
        self._port = port
        self._send = send
        self._by_number: dict[int, _Connection] = {}
        self._by_fd: dict[int, _Connection] = {}
        self.done = False

    @property
    def full(self) -> bool:
        return any(len(one.waiting) >= WAITING_BYTES for one in self._by_number.values())

    def message(self, data: bytes) -> None:
        if len(data) < 5:
            return
        kind, number, content = data[0], int.from_bytes(data[1:5], "big"), data[5:]
        connection = self._by_number.get(number)
        if kind == OPEN and connection is None:
            self._open(number)
        elif connection is None:
            return  # what was under way when it was reset
        elif kind == DATA and not connection.their_end:
            connection.waiting += content
        elif kind == END:
            connection.their_end = True
            self._write(connection)
        elif kind == RESET:
            self._forget(connection, abort=True)

    def interests(self, room: bool) -> list[tuple[int, int]]:
        """Descriptors and the events wanted of them; `room`: whether more may be sent."""
        wanted = []
        for fd, connection in self._by_fd.items():
            events = select.POLLOUT if connection.connecting or connection.waiting else 0
            if room and not connection.connecting and not connection.our_end:
                events |= select.POLLIN
            if events:  # without any a poll would still report hang-ups, again and again
                wanted.append((fd, events))
        return wanted

    def ready(self, fd: int, events: int) -> None:
        connection = self._by_fd.get(fd)
        if connection is None:
            return
        if connection.connecting:
            self._connected(connection)
            return
        if events & (select.POLLOUT | select.POLLERR):
            self._write(connection)
        if fd in self._by_fd and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._read(connection)

    def turn(self, _now: float, _room: Callable[[], bool]) -> None:
        """Nothing to do but when something is ready."""

    def due(self) -> float | None:
        return None

    def stop(self, now: float) -> None:
        """The worker ends."""
        for connection in list(self._by_number.values()):
            self._reset(connection, "the worker has ended")
        self.done = True

    def leave(self, now: float) -> None:
        """The caller has left."""
        for connection in list(self._by_number.values()):
            self._forget(connection, abort=True)
        self.done = True

    def _open(self, number: int) -> None:
        connection = _Connection(number)
        if len(self._by_number) >= MOST:
            self._send_frame(RESET, number, b"%d connections are open, the most there may be" % MOST)
            return
        self._by_number[number] = connection
        self._dial(connection, "")

    def _dial(self, connection: _Connection, why: str) -> None:
        """Try the next of the loopback's addresses."""
        self._hang_up(connection)
        while connection.left:
            family, host = connection.left.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                why = why or os.strerror(error.errno or 0)
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex((host, self._port))
            if code in (0, errno.EINPROGRESS):
                connection.sock = sock
                self._by_fd[sock.fileno()] = connection
                if code == 0:
                    self._connected(connection)
                return
            sock.close()
            why = why or os.strerror(code)
        self._reset(connection, "port %d of the worker can't be reached: %s" % (self._port, why))

    def _connected(self, connection: _Connection) -> None:
        assert connection.sock is not None
        code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._dial(connection, os.strerror(code))
            return
        connection.connecting = False
        self._write(connection)

    def _read(self, connection: _Connection) -> None:
        assert connection.sock is not None
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._reset(connection, error.strerror or str(error))
            return
        if data:
            self._send_frame(DATA, connection.number, data)
            return
        connection.our_end = True
        self._send_frame(END, connection.number)
        self._forget_if_over(connection)

    def _write(self, connection: _Connection) -> None:
        sock = connection.sock
        if sock is None or connection.connecting:
            return
        try:
            while connection.waiting:
                del connection.waiting[: sock.send(connection.waiting[:READ_BYTES])]
            if connection.their_end:
                sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self._reset(connection, error.strerror or str(error))
                return
        self._forget_if_over(connection)

    def _forget_if_over(self, connection: _Connection) -> None:
        if connection.our_end and connection.their_end and not connection.waiting:
            self._forget(connection)

    def _reset(self, connection: _Connection, why: str) -> None:
        self._send_frame(RESET, connection.number, why.encode())
        self._forget(connection, abort=True)

    def _forget(self, connection: _Connection, abort: bool = False) -> None:
        self._hang_up(connection, abort)
        self._by_number.pop(connection.number, None)

    def _hang_up(self, connection: _Connection, abort: bool = False) -> None:
        sock, connection.sock = connection.sock, None
        if sock is None:
            return
        self._by_fd.pop(sock.fileno(), None)
        if abort:
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            except OSError:
                pass
        sock.close()

    def _send_frame(self, kind: int, number: int, data: bytes = b"") -> None:
        self._send(bytes((kind,)) + number.to_bytes(4, "big") + data)
