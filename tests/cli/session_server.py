"""A session's far side, for the tests of `stoker exec` and `port-forward`: a real WebSocket server with a script."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import ServerConnection, serve

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


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server on loopback; what failed in it fails the test."""
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


def command(server: Server, *args: str) -> list[str]:
    return [*STOKER, "--server", server.url, "--token", "stk_t", *args]


def stoker(server: Server, *args: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(server, *args), capture_output=True, timeout=60, **how)


def exits(socket: ServerConnection, code: int = 0, message: str = "") -> None:
    socket.send(EXIT + json.dumps({"exitCode": code, "message": message}).encode())
