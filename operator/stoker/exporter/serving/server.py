"""HTTP for scrapers and probes: GET and HEAD of /metrics, /healthz, /readyz and /. One thread a connection, bounded.

Nothing a client does or leaves undone holds up the others: whole requests have a deadline and a size, connections a
bound at which the longest-idle one makes room, TLS handshakes happen on the connection's own thread. A connection is
kept after an answer that took a token, briefly after any other, and never after a probe's.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from .page import RenderedPage

if TYPE_CHECKING:
    from .tls_and_tokens import BearerTokens, Certificate

REQUEST_S = 10.0
"""For a request's head, the handshake before it included, and for each write of the answer."""
IDLE_S, OPEN_IDLE_S = 90.0, 5.0
"""A client may come back on its connection for so long: one that has sent a token, and one that needed none."""
MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS, MAX_OF_ONE_ADDRESS = 64, 16
"""At either bound a new connection takes the place of the longest-idle one, so probes and Prometheus always get in."""
_TEXT = "text/plain; charset=utf-8"

log = logging.getLogger("stoker.exporter")


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    """With TLS: the wrapped one, from the handshake on."""
    address: str

    def cut(self) -> None:
        """Ends it from another thread: what its own thread waits for fails at once."""
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # TLS' own would change what its thread is using
        except OSError:
            pass


class Server(ThreadingHTTPServer):
    """`serve_forever` on a thread of its own; `server_address` has the port."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        page: RenderedPage,
        *,
        tokens: BearerTokens | None = None,
        certificate: Certificate | None = None,
        request_s: float = REQUEST_S,
        max_connections: int = MAX_CONNECTIONS,
        max_of_one_address: int = MAX_OF_ONE_ADDRESS,
    ) -> None:
        """Raises: OSError if the address can't be had."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.page, self.tokens, self.certificate, self.request_s = page, tokens, certificate, request_s
        self._max_connections, self._max_of_one_address = max_connections, max_of_one_address
        self._connections: dict[_Connection, None] = {}
        """Longest idle first."""
        self._served = 0
        """Those of connections that were cut and have not noticed yet count too."""
        self._lock = threading.Lock()
        super().__init__(address, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        connection = _Connection(request, client_address[0])
        if not self._let_in(connection):
            self.shutdown_request(request)
            return
        thread = threading.Thread(target=self._serve, args=(connection, client_address), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self.shutdown_request(request)
            self._let_out(connection)

    def _let_in(self, connection: _Connection) -> bool:
        with self._lock:
            held = Counter(one.address for one in self._connections)
            full_of: str | None = None
            if held[connection.address] >= self._max_of_one_address:
                full_of = connection.address
            elif held.total() >= self._max_connections:
                full_of = held.most_common(1)[0][0]  # so that many addresses' flood can't push out a single probe
            if self._served >= 2 * self._max_connections:
                return False
            if full_of is not None:
                victim = next(one for one in self._connections if one.address == full_of)
                del self._connections[victim]
                victim.cut()
            self._connections[connection] = None
            self._served += 1
            return True

    def _let_out(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)
            self._served -= 1

    def active(self, connection: _Connection) -> None:
        """It has sent a request or gets its answer: the last to be cut."""
        with self._lock:
            if self._connections.pop(connection, self) is not self:
                self._connections[connection] = None

    def _serve(self, connection: _Connection, client_address: Any) -> None:
        try:
            connection.sock.settimeout(self.request_s)
            if self._secured(connection):
                _Request(connection, client_address, self)
        except Exception:  # the connection's edge
            log.debug("request of %s broke off", connection.address, exc_info=True)
        finally:
            self.shutdown_request(connection.sock)
            self._let_out(connection)

    def _secured(self, connection: _Connection) -> bool:
        """With TLS the handshake; whether it came to one."""
        if self.certificate is None:
            return True
        try:
            context = self.certificate.context()
            with self._lock:  # not while `cut` looks for the socket
                secure = context.wrap_socket(connection.sock, server_side=True, do_handshake_on_connect=False)
                connection.sock = secure
            secure.do_handshake()
        except OSError as error:  # the client's: no TLS, a time-out, another's certificate
            log.debug("TLS with %s: %s", connection.address, error)
            return False
        return True


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

    def __init__(self, held: _Connection, client_address: Any, server: Server) -> None:
        self._held, self._idle_s = held, 0.0
        super().__init__(held.sock, client_address, server)

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
            self._deadline.begin(self._idle_s)

    def do_GET(self) -> None:
        self.server.active(self._held)
        path = self.path.partition("?")[0]
        if path in _OPEN:
            self.close_connection = True  # a probe comes on a new one anyhow
        self._idle_s = OPEN_IDLE_S if self.server.tokens is None else IDLE_S
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
        gzip = "gzip" in self.headers.get("Accept-Encoding", "")
        media_type, body = self.server.page.body(self.headers.get("Accept", ""), gzip=gzip)
        self._send(HTTPStatus.OK, media_type, body, *((("Content-Encoding", "gzip"),) if gzip else ()))

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
        self.server.active(self._held)  # before the client may know: its next connection finds this one in order
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
