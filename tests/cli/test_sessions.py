"""`stoker exec` as a process, and what it shares with `port-forward`, against a scripted server.

Terminals are real ones. The real worker: test_sessions_real.py.
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
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from stoker.cli.main import cli

from .session_server import EXIT, READY, Server, command, exits, serving, stoker


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


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
    args = command(server, "exec", "a", "--", "x")
    with subprocess.Popen(args, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
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


def test_a_wait_is_reported(server: Server) -> None:
    go_on = threading.Event()

    def worker(socket: ServerConnection, _opening: dict[str, Any]) -> None:
        go_on.wait(30)
        socket.send(READY)
        exits(socket)

    server.worker = worker
    args = command(server, "exec", "a")
    with subprocess.Popen(args, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "stoker: waiting for worker 0 of a to come …\n"
        go_on.set()
    assert process.returncode == 0


@pytest.mark.parametrize("kind", ["exec", "port-forward"])
def test_refusals_are_the_servers_message(server: Server, kind: str) -> None:
    args = [kind, "a"] if kind == "exec" else [kind, "a", ":80"]
    server.refuse(409, "NotRunning", "Worker 0 of job 'a' is Pending.")
    done = stoker(server, *args)
    assert (done.returncode, done.stderr) == (1, b"stoker: Worker 0 of job 'a' is Pending.\n")
    server.refuse(307, "x", "x", Location="http://127.0.0.1:1/elsewhere")
    done = stoker(server, *args)
    assert done.returncode == 1 and b"redirects to http://127.0.0.1:1/elsewhere" in done.stderr
    server.refusal = None
    server.worker = lambda socket, _: socket.send('{"ready":false,"message":"no such program"}')
    done = stoker(server, *args)
    assert (done.returncode, done.stderr) == (1, b"stoker: no such program\n")
    server.worker = lambda socket, _: socket.close(1011, "the worker's side of the session broke off")
    done = stoker(server, *args)
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
def typist(server: Server, *args: str) -> Iterator[Typist]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command(server, *args), stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal,
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
        self.changed = threading.Condition()
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
                with self.changed:
                    if message[:1] == b"\x03":
                        self.sizes.append(json.loads(message[1:]))
                    elif message[:1] == b"\x00":
                        self.typed += message[1:]
                        socket.send(b"\x01" + message[1:])
                        if b"exit\r" in self.typed:
                            exits(socket, 7)
                    self.changed.notify_all()
        except ConnectionClosed:
            self.gone.set()

    def wait(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, 20), (self.sizes, self.typed)


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
