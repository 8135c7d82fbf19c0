"""Connections of the client: kept, dropped when the server closed them, through a proxy, over TLS, broken off."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client.config import Endpoint
from stoker.client.connections import Broken, Connections, tls_context
from stoker.client.errors import ApiError, BadInput, Unreachable
from stoker.client.wire import ConnectionLost, Wire

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.contextmanager
def served(
    serve: Callable[[socket.socket], object], context: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[int]]]:
    """A listener whose connections `serve` answers, one after the other; its port, and a number for each connection."""
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    seen.append(len(seen))
                    with plain, contextlib.suppress(OSError), _wrapped(plain, context) as peer:
                        serve(peer)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _wrapped(plain: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    return context.wrap_socket(plain, server_side=True) if context else plain


def head(peer: socket.socket) -> bytes:
    """One request without a body; empty when the peer has gone."""
    read = b""
    while not read.endswith(b"\r\n\r\n"):
        piece = peer.recv(65536)
        if not piece:
            return b""
        read += piece
    return read


def connections(port: int, scheme: str = "http", host: str = "127.0.0.1", *, proxy: bool = False) -> Connections:
    return Connections(f"{scheme}://{host}:{port}", {"Authorization": "Bearer t"}, timeout_s=5, through_proxy=proxy)


def got(http: Connections, path: str = "/x") -> bytes:
    with http.send("GET", path) as answer:
        return answer.read()


def test_a_connection_is_used_again_until_the_server_closes_it() -> None:
    def twice(peer: socket.socket) -> None:
        for _ in range(2):
            if head(peer):
                peer.sendall(OK)

    with served(twice) as (port, seen), contextlib.closing(connections(port)) as http:
        assert [got(http), got(http)] == [b"{}", b"{}"] and len(seen) == 1
        idle = http._idle[0].sock
        assert idle.recv(1, socket.MSG_PEEK) == b""  # the server's end has arrived
        assert got(http) == b"{}" and len(seen) == 2


def test_an_answer_left_in_the_middle_closes_its_connection() -> None:
    def long(peer: socket.socket) -> None:
        while head(peer):
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
            if peer.recv(1) == b"":
                return

    with served(long) as (port, _), contextlib.closing(connections(port)) as http:
        with http.send("GET", "/x") as answer:
            assert next(answer.pieces()) == b"ab"
        assert http._idle == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
        b"HTTP/1.1 what\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_an_error_read_at_once_or_in_pieces(answer: bytes) -> None:
    def once(peer: socket.socket) -> None:
        head(peer)
        peer.sendall(answer)

    with served(once) as (port, _), contextlib.closing(connections(port)) as http:
        with pytest.raises(Broken):
            got(http)
        with pytest.raises(Broken), http.send("GET", "/x") as found:
            list(found.pieces())
        wire = Wire(Endpoint(f"http://127.0.0.1:{port}"), timeout_s=5, tries=1)
        with pytest.raises(Unreachable, match="it closed the connection"):
            wire.call("GET", "/x")
        with pytest.raises(ConnectionLost), wire.stream("/x", params={}, headers={}) as stream:
            list(stream.chunks())


def test_a_refusal_in_the_middle_of_a_long_body_is_read() -> None:
    refusal = b'{"code": "TooLarge", "detail": "too large"}'
    head_of = b"HTTP/1.1 413 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"

    def refuse(peer: socket.socket) -> None:
        peer.recv(1024)
        peer.sendall(head_of % len(refusal) + refusal)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 20):  # what is still coming, else the system resets the connection
            pass

    body = (b"x" * 65536 for _ in range(64))
    with served(refuse) as (port, _):
        wire = Wire(Endpoint(f"http://127.0.0.1:{port}"), timeout_s=5, tries=1)
        with pytest.raises(ApiError, match="too large"):
            wire.call("POST", "/x", content=body)
        wire.close()


def test_a_proxy_of_the_environment_is_asked_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def proxy(peer: socket.socket) -> None:
        asked.append(head(peer))
        peer.sendall(OK)

    with served(proxy) as (port, _):
        monkeypatch.setenv("http_proxy", f"http://me:p%40ss@127.0.0.1:{port}")
        http = connections(80, host="stoker.example", proxy=True)
        assert got(http, "/v1/whoami") == b"{}"
        monkeypatch.setenv("no_proxy", "stoker.example")
        assert connections(80, host="stoker.example", proxy=True)._proxy is None
        http.close()
    (request,) = asked
    assert request.startswith(b"GET http://stoker.example:80/v1/whoami HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in request and b"Authorization: Bearer t\r\n" in request


def test_the_token_goes_through_a_tunnel_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def proxy(peer: socket.socket) -> None:
        asked.append(head(peer))
        peer.sendall(b"HTTP/1.1 407 No\r\n\r\n")

    with served(proxy) as (port, _):
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(OSError, match="407"):
            got(connections(443, "https", "stoker.example", proxy=True))
    assert asked[0].startswith(b"CONNECT stoker.example:443 ") and b"Bearer" not in asked[0]


@pytest.mark.parametrize("named", ["socks5://127.0.0.1:1", "https://127.0.0.1:1", "http://:3128", "http://a:none"])
def test_a_proxy_that_can_not_be_used_is_named(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", named)
    with pytest.raises(BadInput, match=r"exempt stoker\.example by NO_PROXY"):
        connections(80, host="stoker.example", proxy=True)


def _make_certificates(folder: Path) -> None:
    """An authority and a server's certificate, as strict as newer Pythons want them."""
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "9",
    ]
    ca = [*new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=own", "-addext", "keyUsage=critical,keyCertSign"]
    server = [
        *new,
        "-keyout",
        "server.key",
        "-out",
        "server.crt",
        "-subj",
        "/CN=stoker",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
    ]
    server += ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    for command in (ca, server):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)


def test_a_server_is_trusted_by_the_certificates_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    def once(peer: socket.socket) -> None:
        if head(peer):
            peer.sendall(OK)

    with served(once, context) as (port, _):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        with contextlib.closing(connections(port, "https", "localhost")) as http:
            assert got(http) == b"{}"
        with pytest.raises(ssl.SSLCertVerificationError):  # another name than the certificate's
            got(connections(port, "https"))
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(ssl.SSLCertVerificationError):
            got(connections(port, "https", "localhost"))
        wire = Wire(Endpoint(f"https://localhost:{port}"), timeout_s=5, tries=1)
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            wire.call("GET", "/x")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    with pytest.raises(BadInput, match="there is no such file"):
        tls_context()


def test_a_reader_is_woken_by_an_abort_from_another_thread() -> None:
    def silent(peer: socket.socket) -> None:
        head(peer)
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        peer.recv(1)

    with served(silent) as (port, _), contextlib.closing(connections(port)) as http:
        with http.send("GET", "/x", quiet_s=60) as answer:
            pieces = answer.pieces()
            assert next(pieces) == b"ab"
            waker = threading.Timer(0.05, answer.abort)
            waker.start()
            with pytest.raises(Broken):
                next(pieces)
        waker.join()


def test_a_header_that_can_not_be_sent_is_refused() -> None:
    wire = Wire(Endpoint("http://127.0.0.1:9"), timeout_s=5)
    with pytest.raises(BadInput, match="Idempotency-Key: only printable"):
        wire.call("POST", "/x", headers={"Idempotency-Key": "a\r\nHost: b"})


def test_query_and_path_are_sent_as_the_server_reads_them(script: Any) -> None:
    script.on("GET", "/x", script.json({}))
    wire = Wire(Endpoint(script.url), timeout_s=5)
    wire.call("GET", "/x", params={"since": "2026-01-01T00:00:00+01:00", "q": "a b&c"})
    wire.close()
    assert script.requests[0].query == {"since": "2026-01-01T00:00:00+01:00", "q": "a b&c"}
