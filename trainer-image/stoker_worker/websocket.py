"""A client's end of a WebSocket (RFC 6455) over one non-blocking socket. What a session needs of it, and no more.

Owns handshake, frames, masking, pings, the close, and the bytes that wait for the socket. No extensions. Never waits
once the handshake is done: the loop (`session`) says when the socket can be read or written.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import socket
import urllib.parse

from .link import bearer, open_connection, place

MYPY = False
if MYPY:
    from typing import Iterator

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, PROTOCOL_ERROR, TOO_BIG = 1000, 1001, 1002, 1009
MESSAGE_BYTES = 128 * 1024
_READ_BYTES = 1 << 16
_HEAD_BYTES = 1 << 16
_CONTROL_BYTES = 125
_OWED_BYTES = 1 << 20
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_WANTS = frozenset(("SSLWantReadError", "SSLWantWriteError"))


class HandshakeRefused(Exception):
    """The server did not open the WebSocket."""


class WebSocketLost(Exception):
    """The connection is over without a close, or the peer breaks the protocol."""


def connect(target: dict[str, str], path: str, subprotocol: str, timeout_s: float) -> WebSocket:
    """Raises: HandshakeRefused, OSError, ValueError, KeyError."""
    connection = open_connection(target, timeout_s)
    connection.connect()
    sock = connection.sock
    try:
        key = binascii.b2a_base64(os.urandom(16), newline=False)
        lines = (
            "GET %s HTTP/1.1" % place(target, path),
            "Host: " + urllib.parse.urlsplit(target["url"]).netloc,
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: " + key.decode(),
            "Sec-WebSocket-Protocol: " + subprotocol,
            "Authorization: " + bearer(target),
        )
        sock.sendall("\r\n".join((*lines, "", "")).encode("latin-1"))
        head, early = _read_head(sock)
        _check(head, key, subprotocol)
    except BaseException:
        sock.close()
        raise
    _keep_alive(sock)
    sock.setblocking(False)
    return WebSocket(sock, early)


class WebSocket:
    def __init__(self, sock: socket.socket, early: bytes = b"") -> None:
        """`early`: what came in behind the handshake's answer."""
        self._sock = sock
        self._in = bytearray(early)
        self._fresh = bool(early)
        self._message = b""
        self._kind = 0
        self._out: list[bytes] = []
        self._close_sent = False
        self.queued = 0
        """Bytes that wait for the socket."""
        self.closed = False
        """The peer has sent its close frame."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def readable(self) -> bool:
        """Whether there is something to receive that no poll would report."""
        # A TLS socket's records; by its method, since a Python need not have the ssl module.
        return self._fresh or bool(getattr(self._sock, "pending", int)())

    def send(self, data: bytes, kind: int = BINARY) -> None:
        """Queue one message."""
        if not self._close_sent:
            self._queue(kind, data)

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Queue the close frame, behind all that was queued."""
        if not self._close_sent:
            text = reason.encode()[: _CONTROL_BYTES - 2].decode("utf-8", "ignore").encode()
            self._queue(CLOSE, code.to_bytes(2, "big") + text)
            self._close_sent = True

    def flush(self) -> None:
        """Write as much as the socket takes. Raises: WebSocketLost."""
        try:
            while self._out:
                first = self._out[0]
                taken = self._sock.send(first)
                self.queued -= taken
                if taken < len(first):
                    self._out[0] = first[taken:]
                else:
                    del self._out[0]
        except OSError as error:
            if not _later(error):
                raise WebSocketLost(str(error)) from None

    def receive(self) -> list[tuple[int, bytes]]:
        """The messages that have come in by now: (TEXT or BINARY, content). Raises: WebSocketLost."""
        self._fresh = False
        data: bytes | None = None
        try:
            data = self._sock.recv(_READ_BYTES)
        except OSError as error:
            if not _later(error):
                raise WebSocketLost(str(error)) from None
        if data == b"" and not self._in:
            raise WebSocketLost("the connection was closed")
        self._in += data or b""
        messages = list(self._messages())
        if data == b"" and not self.closed:
            raise WebSocketLost("the connection was closed")
        return messages

    def drop(self) -> None:
        try:
            self._sock.close()
        except OSError:
            pass

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        while not self.closed:
            frame = self._frame()
            if frame is None:
                return
            final, kind, data = frame
            if kind == PING:
                if self.queued < _OWED_BYTES and not self._close_sent:
                    self._queue(PONG, data)
            elif kind == CLOSE:
                self.closed = True
                self.close(int.from_bytes(data[:2], "big") if len(data) >= 2 else NORMAL)
            elif kind != PONG:
                if (kind == CONTINUED) != (self._kind != 0):
                    self._fail(PROTOCOL_ERROR, "a message within a message")
                self._kind = kind or self._kind
                self._message += data
                if final:
                    whole, self._message = (self._kind, self._message), b""
                    self._kind = 0
                    yield whole

    def _frame(self) -> tuple[bool, int, bytes] | None:
        """The next whole frame: (whether it is its message's last, opcode, content)."""
        held = self._in
        if len(held) < 2:
            return None
        first, second = held[0], held[1]
        kind, size, start = first & 15, second & 127, 2
        if first & 0x70 or second & 0x80 or kind not in (CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            self._fail(PROTOCOL_ERROR, "a frame that no server may send")
        if kind >= CLOSE and (size > _CONTROL_BYTES or not first & 0x80):
            self._fail(PROTOCOL_ERROR, "a control frame that is too long or in pieces")
        if size > _CONTROL_BYTES:
            start += 2 if size == 126 else 8
            if len(held) < start:
                return None
            size = int.from_bytes(held[2:start], "big")
        if size + len(self._message) > MESSAGE_BYTES:
            self._fail(TOO_BIG, "a message of more than %d bytes" % MESSAGE_BYTES)
        if len(held) < start + size:
            return None
        data = bytes(held[start : start + size])
        del held[: start + size]
        return bool(first & 0x80), kind, data

    def _fail(self, code: int, why: str) -> None:
        self.close(code, why)
        self.flush()
        raise WebSocketLost(why)

    def _queue(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size <= _CONTROL_BYTES:
            head = bytes((0x80 | kind, 0x80 | size))
        elif size < 1 << 16:
            head = bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8, "big")
        mask = os.urandom(4)
        frame = head + mask + _masked(data, mask)
        self._out.append(frame)
        self.queued += len(frame)


def _later(error: OSError) -> bool:
    """Whether the socket only has nothing, or no room, now."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in _WANTS


def _masked(data: bytes, mask: bytes) -> bytes:
    """As one large number: byte by byte Python would take a hundred times as long."""
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    """The answer's head, and what came in behind it. Raises: HandshakeRefused, OSError."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(4096)
        if not more or len(data) > _HEAD_BYTES:
            raise HandshakeRefused("the server gave no answer to the handshake")
        data += more
    head, _, early = data.partition(b"\r\n\r\n")
    return head, early


def _check(head: bytes, key: bytes, subprotocol: str) -> None:
    """Raises: HandshakeRefused."""
    lines = head.decode("latin-1").split("\r\n")
    status = lines[0].split(" ", 2)
    if len(status) < 2 or status[1] != "101":
        raise HandshakeRefused("the server answered " + " ".join(status[1:])[:100])
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    expected = binascii.b2a_base64(hashlib.sha1(key + _GUID).digest(), newline=False).decode()
    if headers.get("sec-websocket-accept") != expected or headers.get("upgrade", "").lower() != "websocket":
        raise HandshakeRefused("the server's answer is no WebSocket's")
    if headers.get("sec-websocket-protocol") != subprotocol or "sec-websocket-extensions" in headers:
        raise HandshakeRefused("the server speaks another protocol than " + subprotocol)


def _keep_alive(sock: socket.socket) -> None:
    """A server that is gone without a close is noticed in a minute."""
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    ):
        try:
            sock.setsockopt(level, getattr(socket, name), value)
        except (OSError, AttributeError):
            pass
