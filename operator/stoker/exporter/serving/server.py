"""HTTP for scrapers and probes: GET and HEAD of /metrics, /healthz, /readyz and /. One thread a connection, bounded.

Nothing a client does or leaves undone holds up the others: whole requests have a deadline and a size, connections a
bound, TLS handshakes happen on the connection's own thread. A connection is kept only after an answer that was earned.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from .page import Page
from .text import CONTENT_TYPE

if TYPE_CHECKING:
    from .door import Certificate, Tokens

REQUEST_S = 10.0
"""For a request's head, the handshake before it included, and for each write of the answer."""
IDLE_S = 90.0
"""A scraper may come back on its connection for so long."""
MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS, MAX_OF_ONE_ADDRESS = 64, 16
"""One client that holds all it can get leaves room for the probes and for Prometheus."""
_TEXT = "text/plain; charset=utf-8"

log = logging.getLogger("stoker.exporter")


class Server(ThreadingHTTPServer):
    """`serve_forever` on a thread of its own; `server_address` tells the port."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        page: Page,
        *,
        tokens: Tokens | None = None,
        certificate: Certificate | None = None,
        request_s: float = REQUEST_S,
        max_connections: int = MAX_CONNECTIONS,
        max_of_one_address: int = MAX_OF_ONE_ADDRESS,
    ) -> None:
        """Raises: OSError if the address can't be had."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.page, self.tokens, self.certificate, self.request_s = page, tokens, certificate, request_s
        self._max_connections, self._max_of_one_address = max_connections, max_of_one_address
        self._connections: Counter[str] = Counter()
        """By address."""
        self._counting = threading.Lock()
        super().__init__(address, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._let_in(client_address[0]):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._let_out(client_address[0])
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_out(client_address[0])

    def _let_in(self, address: str) -> bool:
        with self._counting:
            full = self._connections.total() >= self._max_connections
            if full or self._connections[address] >= self._max_of_one_address:
                return False
            self._connections[address] += 1
            return True

    def _let_out(self, address: str) -> None:
        with self._counting:
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(self.request_s)
        if self.certificate is None:
            super().finish_request(request, client_address)
            return
        try:
            secure = self.certificate.context().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        except OSError:
            return
        with secure:
            try:
                secure.do_handshake()
            except OSError as error:  # the client's: no TLS, a time-out, another's certificate
                log.debug("TLS with %s: %s", client_address[0], error)
                return
            super().finish_request(secure, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("request of %s broke off", client_address[0], exc_info=True)


class _Deadline(io.RawIOBase):
    """A socket's bytes, as long as the request's head is neither late nor long."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._until_s = 0.0
        self._left = 0

    def begin(self, wait_s: float) -> None:
        """A new request may take so long and MAX_HEAD_BYTES."""
        self._until_s, self._left = time.monotonic() + wait_s, MAX_HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0 or self._left <= 0:
            raise TimeoutError("the request's head is late or too long")
        self._sock.settimeout(left_s)
        got = self._sock.recv_into(buffer, min(len(buffer), self._left))
        self._left -= got
        return got


class _Request(BaseHTTPRequestHandler):
    server: Server
    wbufsize = -1  # head and body in one piece: two would wait for each other (Nagle, delayed acknowledgement)
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    server_version = "stoker-exporter"
    sys_version = ""
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = _TEXT

    def setup(self) -> None:
        super().setup()
        self._deadline = _Deadline(self.connection)
        self.rfile = io.BufferedReader(self._deadline, 4096)
        self._deadline.begin(self.server.request_s)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        finally:
            self.connection.settimeout(self.server.request_s)
        if not self.close_connection:
            self._deadline.begin(IDLE_S)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answer = _ANSWERS.get(path)
        if self.headers.get("Content-Length", "0") != "0" or self.headers.get("Transfer-Encoding"):
            self._say(HTTPStatus.BAD_REQUEST, "a request here has no body\n")
        elif answer is None:
            self._say(HTTPStatus.NOT_FOUND, "there is /metrics, /healthz and /readyz\n")
        elif path not in _OPEN and not self._admitted():
            self._say(
                HTTPStatus.UNAUTHORIZED, "send a token: Authorization: Bearer …\n", ("WWW-Authenticate", "Bearer")
            )
        else:
            answer(self)

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._not_allowed
        raise AttributeError(name)

    def _not_allowed(self) -> None:
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD\n", ("Allow", "GET, HEAD"))

    def _admitted(self) -> bool:
        return self.server.tokens is None or self.server.tokens.admit(self.headers.get("Authorization"))

    def metrics(self) -> None:
        page = self.server.page
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            self._send(HTTPStatus.OK, CONTENT_TYPE, page.packed(), ("Content-Encoding", "gzip"))
        else:
            self._send(HTTPStatus.OK, CONTENT_TYPE, page.plain())

    def health(self) -> None:
        page = self.server.page
        if page.alive:
            self._say(HTTPStatus.OK, "ok\n")
        else:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"the poll loop has been silent for {page.silent_s:.0f} s\n")

    def readiness(self) -> None:
        if self.server.page.ready:
            self._say(HTTPStatus.OK, "ok\n")
        else:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "no poll of the GPUs yet\n")

    def index(self) -> None:
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in _ANSWERS if path != "/")
        text = f"<!doctype html><title>Stoker's exporter</title><h1>Stoker's exporter</h1><ul>{links}</ul>\n"
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", text.encode())

    def _say(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        self._send(status, _TEXT, text.encode(), *headers)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, *headers: tuple[str, str]) -> None:
        if status is not HTTPStatus.OK:
            self.close_connection = True
        self.connection.settimeout(self.server.request_s)
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *((("Connection", "close"),) if self.close_connection else ()),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name there)
        log.debug("%s %s", self.address_string(), format % args)


_ANSWERS: dict[str, Callable[[_Request], None]] = {
    "/": _Request.index,
    "/metrics": _Request.metrics,
    "/healthz": _Request.health,
    "/readyz": _Request.readiness,
}
_OPEN = ("/healthz", "/readyz")
"""The kubelet's probes have no token."""
