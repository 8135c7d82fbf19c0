"""The operator's three pages: /healthz, /readyz, /metrics. Plain HTTP/1.1, one request per connection.

Served by the operator's own event loop on purpose: a loop that hangs answers no probe. Never asks the store. Some pages
are for known callers only. Called by `main`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

_TIMEOUT_S = 5.0
_REQUEST_MAX = 32 << 10
_CONNECTIONS = 64
"""At once; one more ends the oldest."""
_TEXT = "text/plain; charset=utf-8"

Answer = tuple[bool, bytes, str]
"""(whether all is well, body, content type)."""
Page = Callable[[], Answer | Awaitable[Answer]]
Guard = Callable[[str], Awaitable[HTTPStatus]]
"""An Authorization header → OK, or the status of the refusal."""


async def serve_probes(host: str, port: int, pages: Mapping[str, Page], guards: Mapping[str, Guard]) -> asyncio.Server:
    """A server that listens already. `guards`: of the pages that are not everybody's.

    Raises: OSError when the port is taken.
    """
    held: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(held) >= _CONNECTIONS:
            oldest = next(iter(held))
            del held[oldest]
            oldest.transport.abort()
        held[writer] = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _response(head, pages, guards))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            held.pop(writer, None)
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_REQUEST_MAX)


def text(ok: bool, line: str) -> Answer:
    """A page of one line."""
    return ok, f"{line}\n".encode(), _TEXT


async def _response(head: bytes, pages: Mapping[str, Page], guards: Mapping[str, Guard]) -> bytes:
    text = head.decode("latin-1")
    parts = text.split("\r\n", 1)[0].split(" ")
    method, target = (parts[0], parts[1].partition("?")[0]) if len(parts) == 3 else ("", "")
    page, guard = pages.get(target), guards.get(target)
    status, kind = HTTPStatus.OK, _TEXT
    if method not in ("GET", "HEAD"):
        status, body = HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n"
    elif page is None:
        status, body = HTTPStatus.NOT_FOUND, ("there is: " + ", ".join(sorted(pages)) + "\n").encode()
    elif guard is not None and (status := await guard(_authorization(text))) is not HTTPStatus.OK:
        body = _REFUSED[status]
    else:
        made = page()
        ok, body, kind = await made if inspect.isawaitable(made) else made
        status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    start = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    if status is HTTPStatus.UNAUTHORIZED:
        start += "WWW-Authenticate: Bearer\r\n"
    return f"{start}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else body)


def _authorization(head: str) -> str:
    found = _AUTHORIZATION.search(head)
    return found[1] if found else ""


_AUTHORIZATION = re.compile(r"\r\nauthorization:[ \t]*([^\r\n]*)", re.IGNORECASE)
_REFUSED = {
    HTTPStatus.UNAUTHORIZED: b"send a token of the cluster's: Authorization: Bearer ...\n",
    HTTPStatus.FORBIDDEN: b"this account lacks the right to get the path /metrics (ClusterRole ...-metrics)\n",
    HTTPStatus.SERVICE_UNAVAILABLE: b"the cluster can't be asked about this token now; try again\n",
}
