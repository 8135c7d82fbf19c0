"""An HTTP server on loopback that keeps what was posted to it: what Alertmanager sends, and a stand-in that answers
as a test says (a remote-write receiver that refuses). Owns its thread and its port. Called by tests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any

from tests.support.local_server import LocalServer
from tests.support.testbed.parts import until


@dataclass(frozen=True, slots=True)
class Posted:
    """One request."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Webhook:
    """`with Webhook() as hook:` listens; `hook.posted` is what came, in order.

    answer: called with each request in its thread, says what is answered; 200 without it.
    """

    def __init__(self, answer: Callable[[Posted], Answer] | None = None) -> None:
        self.posted: list[Posted] = []
        self.answer: Callable[[Posted], Answer] = answer or (lambda _: Answer())
        hook = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 30
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Posted(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                hook.posted.append(request)
                answer = hook.answer(request)
                with contextlib.suppress(ConnectionError):  # who gave up waiting gets nothing
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = LocalServer(Handler)
        self.url = f"{self._server.url}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Webhook:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def alerts(self) -> list[dict[str, Any]]:
        """Of all of Alertmanager's notices so far, in order: labels, annotations, status (firing, resolved), …"""
        return [alert for request in list(self.posted) for alert in request.json().get("alerts", [])]

    def until_alert(self, name: str, status: str = "firing", timeout_s: float = 30.0) -> dict[str, Any]:
        """The first notice of this alert in this status. Raises: BedError when the time is over."""

        def reported() -> dict[str, Any] | None:
            for alert in self.alerts():
                if alert["labels"]["alertname"] == name and alert["status"] == status:
                    return alert
            return None

        return until(reported, f"the alert {name} {status}", timeout_s, every_s=0.1)
