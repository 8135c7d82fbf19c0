"""A small real HTTP server that notes what is posted, and answers as a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from stoker.exporter.receipts import Receipt
from tests.support.local_server import LocalServer

JSON, PROBLEM, HTML = "application/json", "application/problem+json", "text/html"


class Post(NamedTuple):
    path: str
    authorization: str | None
    body: dict[str, Any]
    connection: int
    """The client's port: the same while the connection is."""

    @property
    def items(self) -> list[dict[str, Any]]:
        return self.body.get("receipts") or self.body.get("events") or []


class Say(NamedTuple):
    status: int = 200
    body: dict[str, Any] | bytes | None = None
    """None: everything is taken."""
    media_type: str = JSON
    headers: dict[str, str] = {}


def problem(status: int, detail: str = "No.", **headers: str) -> Say:
    return Say(status, {"detail": detail}, PROBLEM, {name.replace("_", "-"): value for name, value in headers.items()})


class RecordingApi:
    def __init__(self, port: int = 0) -> None:
        self.posts: list[Post] = []
        self.answer: Callable[[Post], Say] = lambda _: Say()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.append(self.connection)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                post = Post(self.path, self.headers.get("Authorization"), body, self.client_address[1])
                said = outer.answer(post)
                outer.posts.append(post)
                data = {"taken": len(post.items), "refused": []} if said.body is None else said.body
                content = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(said.status)
                for name, value in {"Content-Type": said.media_type, **said.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = LocalServer(Handler, port)
        self._connections: list[socket.socket] = []
        self.port, self.url = self.server.server_port, self.server.url
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def taken(self) -> list[dict[str, Any]]:
        """Every item of every post, refused ones too."""
        return [item for post in list(self.posts) for item in post.items]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def receipt(seq: int = 1, *, worker: int = 0, final: bool = False, **more: Any) -> Receipt:
    fields: dict[str, Any] = {
        "ledger": "ledger-1",
        "node": "n0",
        "uuid": "GPU-0",
        "job_uid": "job-1",
        "attempt": 1,
        "worker": worker,
        "project": "vision",
        "job_name": "train",
        "pod_uid": "pod-1",
        "model": "H200",
        "seq": seq,
        "begin_at": time.time() - 60,
        "at": time.time(),
        "final": final,
        "allocated_s": 10.0 * seq,
        "unobserved_s": 0.0,
        **more,
    }
    return Receipt(**fields)
