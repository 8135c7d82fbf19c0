"""The operator's three pages: /healthz, /readyz, /metrics. Plain HTTP/1.1, one request per connection.

Served by the operator's own event loop on purpose: a loop that hangs answers no probe. Never asks the store. Called by
`main`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

_TIMEOUT_S = 5.0
_REQUEST_MAX = 8192
_TEXT = "text/plain; charset=utf-8"

Answer = tuple[bool, bytes, str]
"""(whether all is well, body, content type)."""
Page = Callable[[], Answer | Awaitable[Answer]]


async def serve_probes(host: str, port: int, pages: dict[str, Page]) -> asyncio.Server:
    """A server that listens already. Raises: OSError when the port is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _response(head, pages))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_REQUEST_MAX)


def text(ok: bool, words: str) -> Answer:
    """A page of one line."""
    return ok, f"{words}\n".encode(), _TEXT


async def _response(head: bytes, pages: dict[str, Page]) -> bytes:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, target = (words[0], words[1].partition("?")[0]) if len(words) == 3 else ("", "")
    page = pages.get(target)
    if method not in ("GET", "HEAD"):
        status, body, kind = "405 Method Not Allowed", b"only GET\n", _TEXT
    elif page is None:
        status, body, kind = "404 Not Found", ("there is: " + ", ".join(sorted(pages)) + "\n").encode(), _TEXT
    else:
        made = page()
        ok, body, kind = await made if inspect.isawaitable(made) else made
        status = "200 OK" if ok else "503 Service Unavailable"
    start = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return start.encode() + (b"" if method == "HEAD" else body)
