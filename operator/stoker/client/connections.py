"""HTTP/1.1 to one server on the standard library alone: connections kept open, TLS, a proxy of the environment.

Owns sockets and their time-outs; knows no repeat, no token and no problem document. A package for HTTP takes longer to
import than all the rest of a command that lists (docs/benchmarks.md). Called by `wire.py`; `tls_context` by sessions.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlencode, urlsplit

from .errors import BadInput

if TYPE_CHECKING:
    import ssl

KEPT = 16
"""Idle connections kept for the next call."""
_PIECE = 64 * 1024
Broken = (OSError, HTTPException)
"""What a call raises whose connection breaks, or does not come about."""


class Answer:
    """One answer, its body unread. `abort` may be called from any thread and wakes a reader blocked in `pieces`."""

    def __init__(self, response: HTTPResponse, sock: socket.socket) -> None:
        self._response, self._sock = response, sock
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read(self) -> bytes:
        """The whole body. Raises: Broken."""
        return self._response.read()

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises: Broken, also when it ends before its length."""
        try:
            while piece := self._response.read1(_PIECE):
                yield piece
        except ValueError as error:  # another thread has closed it
            raise OSError(str(error)) from None
        if self._response.length:
            raise IncompleteRead(b"", self._response.length)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # of TLS too: not ssl's, which pulls it from under it


@dataclass(frozen=True, slots=True)
class _Proxy:
    host: str
    port: int
    headers: Mapping[str, str]


class Connections:
    """Calls of one server. Safe to share between threads. Units: `timeout_s` for each of connecting, sending and the
    time between two pieces of an answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, timeout_s: float, through_proxy: bool) -> None:
        """`through_proxy`: through the one that the environment names, if it does.

        Raises: BadInput for headers that can't be sent, and for a proxy we can't use."""
        parts = urlsplit(url)
        self._host, self._secure = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._base, self._origin = parts.path, url.removesuffix(parts.path)
        self._headers, self._timeout_s = _sendable(headers), timeout_s
        self._proxy = _proxy(parts.scheme, self._host, self._port) if through_proxy else None
        self._idle: list[HTTPConnection] = []
        self._context: ssl.SSLContext | None = None

    def close(self) -> None:
        """Close the idle ones."""
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        quiet_s: float | None = None,
    ) -> Iterator[Answer]:
        """The answer to a request sent once; no redirect is followed. `quiet_s`: how long it may be silent, if not
        `timeout_s`. Raises: Broken."""
        target = self._base + path + (f"?{urlencode(params, quote_via=quote)}" if params else "")
        sent = {**self._headers, **_sendable(headers or {})}
        if self._proxy and not self._secure:
            target, sent = self._origin + target, {**sent, **self._proxy.headers}
        connection = self._take()
        try:
            whole = _request(connection, method, target, content, sent)
            sock = connection.sock
            sock.settimeout(quiet_s or self._timeout_s)
            response = connection.getresponse()
            with response:
                yield Answer(response, sock)
                reusable = whole and response.isclosed() and not response.will_close
        except BaseException:
            connection.close()
            raise
        if reusable and len(self._idle) < KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> HTTPConnection:
        """An open connection. One that the server has closed meanwhile is readable: there is nothing else to read."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connected()
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                connection.sock.settimeout(self._timeout_s)
                return connection
            connection.close()

    def _connected(self) -> HTTPConnection:
        host, port = (self._proxy.host, self._proxy.port) if self._proxy else (self._host, self._port)
        if self._secure:
            self._context = self._context or tls_context()
            made: HTTPConnection = HTTPSConnection(host, port, timeout=self._timeout_s, context=self._context)
            if self._proxy:
                made.set_tunnel(self._host, self._port, self._proxy.headers)
        else:
            made = HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        return made


def _request(
    connection: HTTPConnection,
    method: str,
    target: str,
    content: bytes | Iterable[bytes] | None,
    headers: Mapping[str, str],
) -> bool:
    """False: the server stopped listening before the end. What it refuses half-way it has answered."""
    try:
        connection.request(method, target, body=content, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def tls_context() -> ssl.SSLContext:
    """Trusts what SSL_CERT_FILE and SSL_CERT_DIR name, else what the system trusts. Raises: BadInput."""
    import ssl

    named = os.environ.get("SSL_CERT_FILE")
    if named and not Path(named).is_file():
        raise BadInput(f"SSL_CERT_FILE names {named}, and there is no such file")
    try:
        context = ssl.create_default_context()
    except OSError as error:
        raise BadInput(f"can't read the certificates to trust: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _sendable(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raises: BadInput for what no header can hold."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise BadInput(f"{name}: only printable ASCII characters can be sent")
    return headers


def _proxy(scheme: str, host: str, port: int) -> _Proxy | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY choose. Raises: BadInput."""
    if not any(name.lower().endswith("_proxy") and value for name, value in os.environ.items()):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    named = proxies.get(scheme) or proxies.get("all")
    if not named or proxy_bypass(f"{host}:{port}"):
        return None
    parts = urlsplit(named if "://" in named else f"http://{named}")
    try:
        proxy_port = parts.port or 80
    except ValueError:
        proxy_port = 0
    if parts.scheme != "http" or not parts.hostname or not proxy_port:
        raise BadInput(
            f"the environment names a proxy for {scheme} that can't be used: write http://HOST:PORT, or exempt "
            f"{host} by NO_PROXY"
        )
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return _Proxy(parts.hostname, proxy_port, headers)
