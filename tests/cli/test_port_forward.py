"""`stoker port-forward` as a process, against a scripted server. The real worker: test_sessions_real.py."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.server import ServerConnection

from stoker.client.errors import BadInput
from stoker.client.sessions.forwarding import Forwarded

from .session_server import READY, Server, command, serving, stoker


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


class Ports:
    """A worker's side of port-forward: reverses what it gets once the caller's half is closed."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.seen: list[tuple[int, int]] = []
        self.changed = threading.Condition()

    def __call__(self, socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        held: dict[int, bytes] = {}
        while True:
            message = socket.recv()
            assert isinstance(message, bytes) and len(message) <= 64 << 10
            kind, number, data = message[0], int.from_bytes(message[1:5]), message[5:]
            if kind == 1:
                held[number] = held.get(number, b"") + data
                if self.echo:
                    socket.send(message)
            elif kind == 2 and not self.echo:
                for begin in range(0, len(held.get(number, b"")), 60_000):
                    socket.send(b"\x01" + message[1:5] + held[number][::-1][begin : begin + 60_000])
                socket.send(b"\x02" + message[1:5])
            elif kind == 2:
                socket.send(message)
            with self.changed:
                self.seen.append((kind, number))
                self.changed.notify_all()

    def wait(self, what: tuple[int, int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what in self.seen, 20), self.seen


@contextlib.contextmanager
def forwarding(server: Server, *ports: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The process, and where it listens."""
    process = subprocess.Popen(command(server, "port-forward", "a", *ports), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in ports]
        assert all(line.startswith("stoker: forwarding 127.0.0.1:") for line in lines), lines
        by_remote = {int(line.rpartition(":")[2]): int(line.partition("127.0.0.1:")[2].split()[0]) for line in lines}
        yield process, [by_remote[int(port.rpartition(":")[2])] for port in ports]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def all_of(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_connections_share_a_session_and_close_by_halves(server: Server) -> None:
    server.worker = worker = Ports()
    with forwarding(server, ":6006") as (process, (port,)):
        data = [os.urandom(2 << 20) for _ in range(3)]
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(dial(port)) for _ in data]

            def push(sock: socket.socket, what: bytes) -> None:
                sock.sendall(what)
                sock.shutdown(socket.SHUT_WR)

            pushing = [threading.Thread(target=push, args=pair) for pair in zip(socks, data, strict=True)]
            for one in pushing:
                one.start()
            for sock, sent in zip(socks, data, strict=True):
                assert all_of(sock) == sent[::-1]
            for one in pushing:
                one.join()
        assert server.openings == [{"kind": "forward", "port": 6006}]
        assert {number for _, number in worker.seen} == {1, 2, 3}
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_several_ports(server: Server) -> None:
    server.worker = Ports()
    with forwarding(server, ":80", ":5678") as (_, ports):
        for port in ports:
            with dial(port) as sock:
                sock.sendall(b"abc")
                sock.shutdown(socket.SHUT_WR)
                assert all_of(sock) == b"cba"
    assert sorted(opening["port"] for opening in server.openings) == [80, 5678]


def test_a_connection_that_the_worker_refuses(server: Server) -> None:
    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        while True:
            message = socket.recv()
            if message[:1] == b"\x00":
                socket.send(b"\x03" + message[1:5] + b"port 80 of the worker can't be reached: Connection refused")

    server.worker = worker
    with forwarding(server, ":80") as (process, (port,)):
        for _ in range(2):
            with dial(port) as sock, contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        assert process.stderr is not None
        assert "Connection refused" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130 and process.stderr.read() == "", "reported once"


def test_a_local_program_that_leaves_is_reported_to_the_worker(server: Server) -> None:
    server.worker = worker = Ports(echo=True)
    with forwarding(server, ":80") as (_, (port,)):
        sock = dial(port)
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        worker.wait((3, 1))
        with dial(port) as again:  # the others go on
            again.sendall(b"y")
            assert again.recv(1) == b"y"


def test_one_that_does_not_read_leaves_others_alone_for_a_megabyte(server: Server) -> None:
    server.worker = Ports(echo=True)
    with forwarding(server, ":80") as (_, (port,)), dial(port) as idle, dial(port) as other:
        idle.sendall(bytes(600 << 10))
        for _ in range(10):
            other.sendall(b"ping")
            assert other.recv(4) == b"ping"


def test_a_port_that_is_taken(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = stoker(server, "port-forward", "a", f"{port}:80")
    assert done.returncode == 2 and f"can't listen on 127.0.0.1:{port}".encode() in done.stderr
    assert not server.asked


def test_ports_are_parsed() -> None:
    assert Forwarded.parse("6006") == Forwarded(6006, 6006)
    assert Forwarded.parse("8080:80") == Forwarded(8080, 80)
    assert Forwarded.parse(":80") == Forwarded(0, 80)
    for bad in ("", "x", "0", ":0", "65536", "-1", "80:", "1:2:3", "99999:80"):
        with pytest.raises(BadInput):
            Forwarded.parse(bad)
