"""A scripted API server on loopback: says exactly what a test wants, an answer per request, and keeps what was asked.

For faults that a real API server does not show on demand. Whatever has to be *right* is tested against a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: bytes
    at: float


@dataclass
class FakeServer:
    """Answers from `script`, the last entry again and again; `asked` is what came."""

    script: deque[Answer] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def answer(self, *answers: Answer) -> None:
        self.script.extend(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(
            Asked(
                request.method,
                request.path,
                dict(request.query),
                request.headers.get("Authorization", ""),
                await request.read(),
                asyncio.get_running_loop().time(),
            )
        )
        chosen = self.script[0] if len(self.script) == 1 else self.script.popleft()
        return await chosen(request)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, url: str, **user: Any) -> Path:
    """A kubeconfig for the server, with this user's credentials."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


# Answers.


def says(body: Any, *, status: int = 200, **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


def refuses(code: int, reason: str = "", message: str = "", *, details: Any = None, **headers: str) -> Answer:
    status = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details or {}}
    return says(status, status=code, **headers)


def streams(*pieces: Any, then: str = "close") -> Answer:
    """A watch: events (or raw bytes) one after the other, then `close`, `hang` (silence) or `break` (cut off)."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        for piece in pieces:
            await response.write(
                piece if isinstance(piece, bytes) else json.dumps(piece, separators=(",", ":")).encode() + b"\n"
            )
        if then == "hang":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        if then == "break" and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def job(name: str, version: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stoker.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "p", "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"trainer": {"command": ["true"]}, **spec},
    }


def event(change: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {"type": change, "object": obj}


def bookmark(version: int, **annotations: str) -> dict[str, Any]:
    meta = {"resourceVersion": str(version), "annotations": annotations}
    return event("BOOKMARK", {"kind": "TrainingJob", "apiVersion": "stoker.dev/v1alpha1", "metadata": meta})


def error(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": message})


def page(*objects: dict[str, Any], version: int = 1, token: str = "") -> dict[str, Any]:
    return {"kind": "List", "metadata": {"resourceVersion": str(version), "continue": token}, "items": list(objects)}
