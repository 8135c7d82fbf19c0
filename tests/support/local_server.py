"""The HTTP server of a test or a tool: a client that leaves in the middle is no error of the server's.

Python's own writes a traceback for each connection that is reset, in the middle of a test run's dots. Any other error
in a handler is still written.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalServer(ThreadingHTTPServer):
    """`port` 0 is any free one. `serve_forever` on a thread of the caller's."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), handler)
        self.url = f"http://{host}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
