"""`stoker exec` and `stoker port-forward` through everything: a real `stoker up`, a real job, its real supervisor."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client.client import Client
from stoker.client.errors import ApiError, BadInput, StokerError, TimedOut

pytest.importorskip("fastapi")
pytestmark = pytest.mark.slow

STOKER = [sys.executable, "-m", "stoker.cli.main"]
WAITING = re.compile(r"stoker: waiting for worker .*\n")
"""Printed on a slow machine, beside what the command says itself."""
JOB = """
import http.server, os, threading
open("page.txt", "w").write("from the worker")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""


class Entered:
    """A `stoker up` in a folder of its own, and a job in it that serves its folder."""

    def __init__(self, home: Path) -> None:
        self.env = {**os.environ, "STOKER_HOME": str(home)}
        self.up = subprocess.Popen([*STOKER, "up", "--port", "0"], env=self.env, stderr=subprocess.PIPE, text=True)
        assert self.up.stderr is not None
        while not (line := self.up.stderr.readline()).startswith("stoker: ready"):
            assert line, "stoker up did not start"
        work = home.parent / "work"
        work.mkdir()
        self("submit", "--name", "serve", "-e", "MARK=from-the-job", "--", sys.executable, "-c", JOB, cwd=work)
        with subprocess.Popen(
            [*STOKER, "logs", "-f", "serve"], env=self.env, stdout=subprocess.PIPE, text=True
        ) as following:
            assert following.stdout is not None
            self.port = int(following.stdout.readline().split()[1])
            following.kill()

    def __call__(self, *args: str, check: bool = True, **how: Any) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run([*STOKER, *args], env=self.env, capture_output=True, timeout=60, **how)
        assert not check or done.returncode == 0, done.stderr
        return done

    def client(self) -> Client:
        home = Path(self.env["STOKER_HOME"])
        return Client(json.loads((home / "endpoint.json").read_text())["url"], (home / "token").read_text().strip())

    def close(self) -> None:
        self("cancel", "serve", check=False)
        self("follow", "serve", check=False)
        self.up.send_signal(signal.SIGTERM)
        self.up.communicate(timeout=60)


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entered]:
    found = Entered(tmp_path_factory.mktemp("sessions") / "home")
    yield found
    found.close()


def test_a_command_in_the_jobs_own_environment(entered: Entered) -> None:
    shell = 'echo "$MARK $(cat page.txt)"; echo aside >&2; exit 5'
    done = entered("exec", "serve", "--", "sh", "-c", shell, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (5, b"from-the-job from the worker\n")
    assert WAITING.sub("", done.stderr.decode()) == "aside\n"
    done = entered("exec", "serve", "--", "no-such-program", check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 127 and b"no-such-program" in done.stderr


def test_a_command_ends_with_who_called_it(entered: Entered) -> None:
    shell = "echo $$; exec sleep 300"
    with subprocess.Popen(
        [*STOKER, "exec", "serve", "--", "sh", "-c", shell],
        env=entered.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as calling:  # fmt: skip
        assert calling.stdout is not None
        pid = int(calling.stdout.readline())
        calling.kill()
    wait = f"while kill -0 {pid} 2>/dev/null; do sleep 0.05; done"
    entered("exec", "serve", "--", "sh", "-c", wait, stdin=subprocess.DEVNULL)


def test_a_shell_with_a_terminal(entered: Entered) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    env = {**entered.env, "TERM": "vt220"}
    args = [*STOKER, "exec", "serve", "--", "env", "PS1=ready> ", "sh", "-i"]
    calling = subprocess.Popen(args, stdin=slave, stdout=slave, stderr=slave, env=env, preexec_fn=own_terminal)
    seen = b""

    def reads(wanted: bytes) -> None:
        nonlocal seen
        while wanted not in seen:
            assert select.select([master], [], [], 20)[0], seen
            seen += os.read(master, 4096)

    try:
        reads(b"ready> ")
        os.write(master, b"stty size; echo $TERM; sleep 100\r")
        reads(b"33 111\r\nvt220")
        seen = b""
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        os.write(master, b"\x03")  # ends the sleep, not the session
        reads(b"ready> ")
        os.write(master, b"stty size; exit 4\r")
        reads(b"40 90\r\n")
        assert calling.wait(20) == 4
    finally:
        calling.kill()
        calling.wait()
        os.close(master)
        os.close(slave)


def test_a_server_in_the_worker_is_reached(entered: Entered) -> None:
    with subprocess.Popen(
        [*STOKER, "port-forward", "serve", f":{entered.port}", ":1"], env=entered.env, stderr=subprocess.PIPE, text=True
    ) as forwarding:
        assert forwarding.stderr is not None
        lines = ""
        while lines.count(" -> ") < 2:
            lines += (line := forwarding.stderr.readline())
            assert line, lines
        here = {
            int(remote): int(local)
            for local, remote in re.findall(r"127\.0\.0\.1:(\d+) -> serve worker 0:(\d+)", lines)
        }
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{here[entered.port]}/page.txt", timeout=20) as answer:
                assert answer.read() == b"from the worker"
        with socket.create_connection(("127.0.0.1", here[entered.port]), timeout=20) as sock:
            sock.sendall(b"GET /page.txt HTTP/1.0\r\n\r\n")
            sock.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: sock.recv(4096), b"")).endswith(b"from the worker")
        with socket.create_connection(("127.0.0.1", here[1]), timeout=20) as sock:
            assert sock.recv(1) == b""
        assert "port 1 of the worker can't be reached: Connection refused" in forwarding.stderr.readline()
        forwarding.send_signal(signal.SIGINT)
    assert forwarding.returncode == 130


def test_the_sdk_runs_a_command_in_a_worker(entered: Entered) -> None:
    with entered.client() as client:
        job = client.get("serve")
        done = job.exec(["sh", "-c", 'cat; echo "$MARK"; echo aside >&2; exit 5'], stdin=b"given " * 20_000, timeout=60)
        assert (done.returncode, done.stderr) == (5, b"aside\n")
        assert done.stdout == b"given " * 20_000 + b"from-the-job\n"
        missing = job.exec(["no-such-program"])
        assert missing.returncode == 127 and b"no such command in PATH" in missing.stderr
        with pytest.raises(TimedOut, match=r"sleep has not ended after 0\.5 s in serve"):
            job.exec(["sleep", "600"], timeout=0.5)
        with pytest.raises(StokerError, match="printed over 64 MiB"):
            job.exec(["head", "-c", "80000000", "/dev/zero"])
        with pytest.raises(ApiError, match="worker"):
            job.exec(["true"], worker=3)

        async def within_a_loop() -> bytes:
            return job.exec(["echo", "a notebook's"]).stdout

        assert asyncio.run(within_a_loop()) == b"a notebook's\n"


def test_the_sdk_forwards_a_port_as_long_as_it_is_wanted(entered: Entered) -> None:
    with entered.client() as client:
        with client.port_forward("serve", entered.port) as port:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/page.txt", timeout=20) as answer:
                assert answer.read() == b"from the worker"
            with pytest.raises(BadInput, match="can't listen on"), client.port_forward("serve", 80, local=port):
                pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=20)
        with pytest.raises(ApiError), client.port_forward("missing", 80):
            pass
