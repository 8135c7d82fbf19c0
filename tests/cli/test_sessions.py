"""`stoker exec` and `stoker port-forward` as processes, against a server that answers as told; terminals are real ones.

The real worker: test_sessions_real.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import ServerConnection, serve

from stoker.cli.errors import BadInput
from stoker.cli.main import cli
from stoker.cli.sessions.forwarding import Forwarded

STOKER = [sys.executable, "-m", "stoker.cli.main"]
READY = '{"ready":true}'
EXIT = b"\x05"


@dataclass
class Server:
    """A session's far side as `worker` plays it. `refusal`: the handshake's answer instead."""

    url: str = ""
    worker: Callable[[ServerConnection, dict[str, Any]], None] = lambda _socket, _opening: None
    refusal: Response | None = None
    asked: list[Any] = field(default_factory=list)
    openings: list[dict[str, Any]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def handle(self, socket: ServerConnection) -> None:
        try:
            self.openings.append(json.loads(socket.recv()))
            self.worker(socket, self.openings[-1])
        except ConnectionClosed:
            pass
        except BaseException as error:
            self.failures.append(error)

    def process(self, _socket: ServerConnection, request: Any) -> Response | None:
        self.asked.append(request)
        return self.refusal

    def refuse(self, status: int, code: str, detail: str, **headers: str) -> None:
        from websockets.datastructures import Headers

        body = json.dumps({"code": code, "detail": detail}).encode()
        named = Headers({**headers, "Content-Type": "application/problem+json", "Content-Length": str(len(body))})
        self.refusal = Response(status, "no", named, body)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with serve(
        found.handle, "127.0.0.1", 0, subprotocols=["v1.session.stoker.dev"], process_request=found.process,
        compression=None,
    ) as listening:  # fmt: skip
        found.url = f"http://127.0.0.1:{listening.socket.getsockname()[1]}"
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield found
        listening.shutdown()
        thread.join()
    assert not found.failures


def command(server: Server, *words: str) -> list[str]:
    return [*STOKER, "--server", server.url, "--token", "stk_t", *words]


def stoker(server: Server, *words: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(server, *words), capture_output=True, timeout=60, **how)


def exits(socket: ServerConnection, code: int = 0, message: str = "") -> None:
    socket.send(EXIT + json.dumps({"exitCode": code, "message": message}).encode())


# exec, by pipes


def test_a_command_by_pipes(server: Server) -> None:
    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        taken = b""
        while (message := socket.recv())[:1] == b"\x00":
            taken += message[1:]
        assert message == b"\x04"
        socket.send(b"\x01" + taken.upper())
        socket.send(b"\x02and a word aside\n")
        exits(socket, 3)

    server.worker = worker
    done = stoker(server, "-p", "vision", "exec", "a", "-w", "2", "--", "tr", "-v", input=b"hello")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"HELLO", b"and a word aside\n")
    assert server.openings == [{"kind": "exec", "argv": ["tr", "-v"], "tty": False}]
    request = server.asked[0]
    assert request.path == "/v1/projects/vision/jobs/a/exec?worker=2"
    assert request.headers["Authorization"] == "Bearer stk_t"
    assert "Sec-WebSocket-Extensions" not in request.headers


def test_much_both_ways_at_once(server: Server) -> None:
    size = 10 << 20

    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        while (message := socket.recv())[:1] == b"\x00":
            assert len(message) <= (64 << 10) + 1
            socket.send(b"\x01" + message[1:])
        exits(socket)

    server.worker = worker
    data = os.urandom(size)
    done = stoker(server, "exec", "a", "--", "cat", input=data)
    assert done.returncode == 0
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_a_reader_that_waits_holds_the_worker_up(server: Server) -> None:
    sent, stalled = [0], threading.Event()

    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        socket.socket.settimeout(None)

        def watch() -> None:
            before = -1
            while before != sent[0]:
                before = sent[0]
                time.sleep(0.5)
            stalled.set()

        threading.Thread(target=watch, daemon=True).start()
        for _ in range(640):
            socket.send(b"\x01" + bytes(64 << 10))
            sent[0] += 64 << 10
        exits(socket)

    server.worker = worker
    words = command(server, "exec", "a", "--", "x")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"\x00"
        assert stalled.wait(30) and sent[0] < 24 << 20, "the kernel's buffers and 16 messages"
        rest = process.stdout.read()
    assert (len(rest) + 1, process.returncode) == (640 * (64 << 10), 0)


def test_a_command_that_ends_before_its_input(server: Server) -> None:
    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        exits(socket, 137, "ended by signal 9")

    server.worker = worker
    read, write = os.pipe()
    done = stoker(server, "exec", "a", stdin=read)
    os.close(write)
    os.close(read)
    assert (done.returncode, done.stderr) == (137, b"stoker: ended by signal 9\n")
    assert server.openings == [{"kind": "exec", "argv": [], "tty": False}]


def test_a_pipe_closed_early_ends_quietly(server: Server) -> None:
    gone = threading.Event()

    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        with contextlib.suppress(ConnectionClosed):
            while True:
                socket.send(b"\x01" + b"y\n" * 1000)
        gone.set()

    server.worker = worker
    shell = " ".join(command(server, "exec", "a", "--", "yes")) + " </dev/null | head -1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"y\n", b"") and gone.wait(10)


def test_a_wait_is_told(server: Server) -> None:
    go_on = threading.Event()

    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        go_on.wait(30)
        socket.send(READY)
        exits(socket)

    server.worker = worker
    words = command(server, "exec", "a")
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "stoker: waiting for worker 0 of a to come …\n"
        go_on.set()
    assert process.returncode == 0


@pytest.mark.parametrize("kind", ["exec", "port-forward"])
def test_refusals_are_the_servers_words(server: Server, kind: str) -> None:
    words = [kind, "a"] if kind == "exec" else [kind, "a", ":80"]
    server.refuse(409, "NotRunning", "Worker 0 of job 'a' is Pending.")
    done = stoker(server, *words)
    assert (done.returncode, done.stderr) == (1, b"stoker: Worker 0 of job 'a' is Pending.\n")
    server.refuse(307, "x", "x", Location="http://127.0.0.1:1/elsewhere")
    done = stoker(server, *words)
    assert done.returncode == 1 and b"sends us on to http://127.0.0.1:1/elsewhere" in done.stderr
    server.refusal = None
    server.worker = lambda socket, _: socket.send('{"ready":false,"message":"no such program"}')
    done = stoker(server, *words)
    assert (done.returncode, done.stderr) == (1, b"stoker: no such program\n")
    server.worker = lambda socket, _: socket.close(1011, "the worker's side of the session broke off")
    done = stoker(server, *words)
    assert done.returncode == 1 and b"broke off" in done.stderr


@pytest.mark.parametrize("kind", ["exec", "port-forward"])
def test_a_connection_that_is_lost(server: Server, kind: str) -> None:
    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        socket.socket.shutdown(1)

    server.worker = worker
    done = stoker(server, kind, "a", *([] if kind == "exec" else [":80"]))
    assert done.returncode == 3 and b"the connection to the server was lost" in done.stderr
    server.worker = lambda socket, _: (socket.send(READY), socket.close(1001, "worker 0 has ended"))[1]
    done = stoker(server, kind, "a", *([] if kind == "exec" else [":80"]))
    assert done.returncode == 1 and done.stderr.endswith(b"stoker: the session was ended: worker 0 has ended\n")


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = CliRunner().invoke(cli, ["--server", url, "exec", "a"])
    assert done.exit_code == 3 and "can't reach the Stoker server" in done.output and "refused" in done.output


def test_ctrl_c_ends_the_session(server: Server) -> None:
    gone = threading.Event()

    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        socket.send(READY)
        socket.send(b"\x01on\n")
        with contextlib.suppress(ConnectionClosed):
            while True:
                socket.recv()
        gone.set()

    server.worker = worker
    process = subprocess.Popen(
        command(server, "exec", "a"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"") and gone.wait(10)


# exec, with a terminal


@dataclass
class Typist:
    """A process with a terminal of its own, and the terminal's other side."""

    process: subprocess.Popen[bytes]
    master: int
    slave: int
    seen: bytes = b""

    def mode(self) -> Any:
        return termios.tcgetattr(self.slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def reads(self, wanted: bytes) -> None:
        while wanted not in self.seen:
            assert select.select([self.master], [], [], 20)[0], self.seen
            self.seen += os.read(self.master, 4096)


@contextlib.contextmanager
def typist(server: Server, *words: str) -> Iterator[Typist]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command(server, *words), stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal,
        env={**os.environ, "TERM": "vt220"},
    )  # fmt: skip
    try:
        yield Typist(process, master, slave)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


class Terminal:
    """A worker's side that echoes as a terminal would, and keeps what it got."""

    def __init__(self) -> None:
        self.sizes: list[dict[str, int]] = []
        self.typed = b""
        self.told = threading.Condition()
        self.gone = threading.Event()
        self.sockets: list[ServerConnection] = []

    def __call__(self, socket: ServerConnection, _opening: dict[str, Any]) -> None:
        self.sockets.append(socket)
        socket.send(READY)
        socket.send(b"\x01$ ")
        try:
            while True:
                message = socket.recv()
                assert isinstance(message, bytes)
                with self.told:
                    if message[:1] == b"\x03":
                        self.sizes.append(json.loads(message[1:]))
                    elif message[:1] == b"\x00":
                        self.typed += message[1:]
                        socket.send(b"\x01" + message[1:])
                        if b"exit\r" in self.typed:
                            exits(socket, 7)
                    self.told.notify_all()
        except ConnectionClosed:
            self.gone.set()

    def wait(self, what: Callable[[], bool]) -> None:
        with self.told:
            assert self.told.wait_for(what, 20), (self.sizes, self.typed)


def test_a_terminal_is_the_commands_and_given_back(server: Server) -> None:
    server.worker = worker = Terminal()
    with typist(server, "exec", "a", "--", "bash") as user:
        before = user.mode()
        user.reads(b"$ ")
        worker.wait(lambda: bool(worker.sizes))
        assert server.openings == [
            {"kind": "exec", "argv": ["bash"], "tty": True, "columns": 111, "rows": 33, "term": "vt220"}
        ]
        assert not user.mode()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)
        os.write(user.master, b"\x03\x1a\x04")  # Ctrl-C, Ctrl-Z, Ctrl-D: keys like others
        worker.wait(lambda: worker.typed == b"\x03\x1a\x04")
        user.resize(80, 50)
        worker.wait(lambda: worker.sizes[-1] == {"columns": 80, "rows": 50})
        os.write(user.master, b"exit\r")
        assert user.process.wait(20) == 7
        assert user.mode() == before


@pytest.mark.parametrize(("how", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130), ("lost", 3), ("bad", 1)])
def test_a_terminal_is_given_back_whatever_ends_the_session(server: Server, how: str, code: int) -> None:
    server.worker = worker = Terminal()
    with typist(server, "exec", "a") as user:
        before = user.mode()
        user.reads(b"$ ")
        worker.wait(lambda: bool(worker.sizes))
        if how == "lost":
            worker.sockets[0].socket.shutdown(socket.SHUT_RDWR)
        elif how == "bad":
            worker.sockets[0].send(EXIT + b"what")
        else:
            user.process.send_signal(getattr(signal, how))
        assert user.process.wait(20) == code
        assert user.mode() == before
    assert worker.gone.wait(10)


def test_a_terminal_behind_a_pipe_is_left_to_the_pager(server: Server) -> None:
    """`stoker exec a -- cat file | less`: the keys are less's."""
    server.worker = lambda socket, _: (socket.send(READY), socket.recv() == b"\x04" and exits(socket))[1]
    master, slave = pty.openpty()
    done = stoker(server, "exec", "a", "--", "cat", stdin=slave)
    os.close(master)
    os.close(slave)
    assert done.returncode == 0 and server.openings[0]["tty"] is False


# port-forward


class Ports:
    """A worker's side of port-forward: reverses what it gets once the caller's half is closed."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.seen: list[tuple[int, int]] = []
        self.told = threading.Condition()

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
            with self.told:
                self.seen.append((kind, number))
                self.told.notify_all()

    def wait(self, what: tuple[int, int]) -> None:
        with self.told:
            assert self.told.wait_for(lambda: what in self.seen, 20), self.seen


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
        assert process.wait(20) == 130 and process.stderr.read() == "", "told once"


def test_a_local_program_that_leaves_is_told_to_the_worker(server: Server) -> None:
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
