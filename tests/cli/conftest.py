"""A small real HTTP server with scripted answers, for what a healthy Stoker never does: cut, stall, send away."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.local_server import LocalServer

from .code_store import CodeStore

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    data: bytes = b""


@dataclass
class Script:
    """Answers per route, in order; the last one is repeated. `requests` is what came in.

    `code` answers on the routes of code where nothing else is set; None: a server that knows none.
    """

    url: str = ""
    routes: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    code: CodeStore | None = field(default_factory=CodeStore)

    @property
    def posted(self) -> list[Request]:
        """What was submitted."""
        return [request for request in self.requests if request.method == "POST" and "/code/" not in request.path]

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self.routes[method, path] = list(answers)

    def take(self, request: Request) -> Answer | None:
        with self.lock:
            self.requests.append(request)
            answers = self.routes.get((request.method, request.path))
            if not answers:
                found = self.code.answer(request) if self.code is not None and "/code/" in request.path else None
                return None if found is None else self.json(found[1], found[0])
            return answers.pop(0) if len(answers) > 1 else answers[0]

    # answers

    @staticmethod
    def json(body: Any, status: int = 200, **headers: str) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            data = json.dumps(body).encode()
            handler.send_response(status)
            kind = "application/json" if status < 400 else "application/problem+json"
            for name, value in {"Content-Type": kind, **headers}.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)

        return answer

    @staticmethod
    def problem(
        status: int, code: str, detail: str, errors: tuple[tuple[str, str], ...] = (), **headers: str
    ) -> Answer:
        faults = [{"pointer": pointer, "detail": text} for pointer, text in errors]
        return Script.json({"code": code, "detail": detail, "errors": faults}, status, **headers)

    @staticmethod
    def cut(handler: BaseHTTPRequestHandler) -> None:
        """Close without a word."""
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    @staticmethod
    def text(data: bytes, kind: str = "text/event-stream", hold: threading.Event | None = None) -> Answer:
        """A stream in one chunk; then cut off (no last chunk is sent), or held open until `hold` is set."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Type", kind)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()
            if hold is not None:
                hold.wait(30)
            handler.close_connection = True

        return answer


@pytest.fixture
def script() -> Iterator[Script]:
    found = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            parts = urlsplit(self.path)
            data = self._data()
            if data is None:  # the client broke off in the middle
                self.close_connection = True
                return
            is_json = (self.headers.get("Content-Type") or "").endswith("json")
            body = json.loads(data) if data and is_json else data or None
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body, data)
            answer = found.take(request) or Script.problem(404, "NotFound", f"nothing at {parts.path}")
            answer(self)

        def _data(self) -> bytes | None:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = b""
            while line := self.rfile.readline():
                size = int(line, 16)
                found += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return found
            return None

        do_GET = do_POST = do_PUT = do_DELETE = _any

        def log_message(self, *args: Any) -> None:
            pass

    server = LocalServer(Handler)
    found.url = server.url
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No server, token, project, folder or memory of the user who runs the tests."""
    for name in ("STOKER_SERVER", "STOKER_TOKEN", "STOKER_PROJECT", "STOKER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A `Live`: the real api, found as `stoker up`'s would be."""
    pytest.importorskip("fastapi")
    from .live_api import Live

    home = tmp_path / "data"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("STOKER_HOME", str(home))
    found = Live(home)
    yield found
    found.close()


@pytest.fixture
def make_job() -> Callable[..., dict[str, Any]]:
    """A TrainingJob as the server sends it."""
    from stoker.spec.job import TrainingJob

    def make(name: str = "digits-1", phase: str = "Queued", spec: Any = None, **status: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"}
        job = {
            "metadata": {**meta, "creationTimestamp": (datetime.now(UTC) - timedelta(seconds=3723)).isoformat()},
            "spec": spec or {"trainer": {"recipe": "image-classification"}, "gpusPerWorker": 1},
            "status": {"phase": phase, **status},
        }
        return TrainingJob.model_validate(job).dump()

    return make


@pytest.fixture
def sse() -> Callable[..., bytes]:
    """One event in the wire's format."""

    def make(event: str, data: Any, event_id: str | None = None) -> bytes:
        text = data if isinstance(data, str) else json.dumps(data)
        lines = [f"event: {event}"] + ([f"id: {event_id}"] if event_id else [])
        lines += [f"data: {line}" for line in text.split("\n")]
        return ("\n".join(lines) + "\n\n").encode()

    return make
