"""Keeps browsers of other sites out: the Host header must name this server, an Origin must be this very one.

Against DNS rebinding (Host) and cross-site requests (Origin), for every method and before anything else looks at the
request. There is no CORS: no foreign page may read or write here.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from stoker_api.problems import Problem, ProblemCode

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Guard:
    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        problem = self._refuse(scope)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await problem.response(scope)(scope, receive, send)

    def _refuse(self, scope: Scope) -> Problem | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        if _split(host)[0] not in self._hosts:
            return Problem(
                ProblemCode.FOREIGN_HOST,
                f"The Host header {host[:80]!r} is none of this server's names; call it by "
                f"{', '.join(sorted(self._hosts))}, or start it with that name allowed.",
            )
        if origins and any(not _same(value.decode("latin-1").lower(), host) for value in origins):
            return Problem(ProblemCode.FOREIGN_ORIGIN, "Pages of other origins may not call this server; use a client.")
        return None


def _split(host: str) -> tuple[str, int | None]:
    """`[::1]:8080` → ('[::1]', 8080); what is no host:port gives a name that nothing matches."""
    name, colon, port = host, "", ""
    if not host.endswith("]"):
        name, colon, port = host.rpartition(":")
        if not colon:
            return host, None
    if colon and not (port.isascii() and port.isdigit() and len(port) <= 5):
        return "", None
    return name, int(port) if port else None


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return False
    name, port = _split(parts.netloc)
    own_name, own_port = _split(host)
    return (name, port or default) == (own_name, own_port or default)
