"""A proxy between an operator or api and a real API server that does one thing wrong, at one write, once.

Owns the faults. Everything else passes as it is, byte by byte. Called by the sweep's tests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

HELD_S = 3.0
"""How long a stale reader lags behind."""


class Fault(StrEnum):
    CONFLICT = "409"
    GONE = "410"
    THROTTLED = "429, Retry-After"
    BROKEN = "500"
    TIMED_OUT = "time-out"
    REPLY_LOST = "reply lost after commit"
    STALE = "stale read"
    SILENT = "silent watch"
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"


_ANSWERS = {
    Fault.CONFLICT: (409, "Conflict"),
    Fault.GONE: (410, "Expired"),
    Fault.THROTTLED: (429, "TooManyRequests"),
    Fault.BROKEN: (500, "InternalError"),
}


def name_of(method: str, path: str, body: bytes) -> str:
    """A write in words: 'create pods', 'status of trainingjobs: Starting', 'delete pods'. '' for a read."""
    if method == "GET":
        return ""
    parts = path.strip("/").split("/")
    at = parts.index("namespaces") + 2 if "namespaces" in parts else 0
    kind, status = parts[at], parts[-1] == "status"
    verb = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}[method]
    if status:
        written = json.loads(body).get("status", {})
        return f"status of {kind}: {'claim' if written.get('claim') else written.get('phase') or 'other'}"
    return f"{verb} {kind}"


class FaultyProxy:
    """`arm` a fault; `hit` is set once it was met. After a kill nothing passes until `revive`."""

    def __init__(self, server: str, trust: ssl.SSLContext) -> None:
        self._server, self._trust = server, trust
        self.session: aiohttp.ClientSession | None = None
        self._armed: tuple[str, str, Fault] | None = None
        self.hit = asyncio.Event()
        self.dead = asyncio.Event()
        self.seen: list[tuple[str, str]] = []
        """The writes that came: their name and path."""
        self._epoch = 0
        self._silent_before = 0
        self._held_until = 0.0
        self._stuck = asyncio.Event()

    def arm(self, write: str, within: str, fault: Fault) -> None:
        """At the next such write whose path or body has `within`. Ends what an earlier fault still holds up."""
        self._stuck.set()
        self._stuck = asyncio.Event()
        self.hit.clear()
        self._silent_before = 0
        self._armed = (write, within, fault)

    def revive(self) -> None:
        self.dead.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.dead.is_set():
            return self._cut(request)
        if request.query.get("watch") == "true":
            return await self._watch(request)
        fault = self._due(request, body)
        loop = asyncio.get_running_loop()
        if fault in _ANSWERS:
            return _status(*_ANSWERS[fault], creates=request.method == "POST")
        if fault is Fault.TIMED_OUT:
            await self._stuck.wait()
            return self._cut(request)
        if fault is Fault.KILLED_BEFORE:
            self.dead.set()
            return self._cut(request)
        if fault is Fault.STALE:
            self._held_until = loop.time() + HELD_S
        elif fault is Fault.SILENT:
            self._silent_before = self._epoch + 1
        answer = await self._forward(request, body)
        if fault is Fault.KILLED_AFTER:
            self.dead.set()
        return self._cut(request) if fault is Fault.REPLY_LOST or self.dead.is_set() else answer

    def _due(self, request: web.Request, body: bytes) -> Fault | None:
        name = name_of(request.method, request.path, body)
        if name:
            self.seen.append((name, request.path))
        if self._armed is None:
            return None
        write, within, fault = self._armed
        if name != write or (within not in request.path and within.encode() not in body):
            return None
        self._armed = None
        self.hit.set()
        return fault

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        assert self.session is not None
        url, kept = URL(self._server + request.raw_path, encoded=True), _kept(request)
        async with self.session.request(request.method, url, headers=kept, data=body, ssl=self._trust) as answer:
            data = await answer.read()
            headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            if "Retry-After" in answer.headers:
                headers["Retry-After"] = answer.headers["Retry-After"]
            return web.Response(status=answer.status, body=data, headers=headers)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        assert self.session is not None
        self._epoch += 1
        opened, loop = self._epoch, asyncio.get_running_loop()
        url = URL(self._server + request.raw_path, encoded=True)
        async with self.session.get(url, headers=_kept(request), ssl=self._trust) as answer:
            passed = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await passed.prepare(request)
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async for data in answer.content.iter_any():
                    if opened < self._silent_before:
                        await self._stuck.wait()  # until the client has had enough of it
                        return self._cut(request)
                    if (lag_s := self._held_until - loop.time()) > 0:
                        await asyncio.sleep(lag_s)
                    if self.dead.is_set():
                        return self._cut(request)
                    await passed.write(data)
            return passed

    def _cut(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


def _kept(request: web.Request) -> dict[str, str]:
    names = ("Authorization", "Content-Type", "Accept")
    return {name: request.headers[name] for name in names if name in request.headers}


def _status(code: int, reason: str, *, creates: bool) -> web.Response:
    said = "AlreadyExists" if code == 409 and creates else reason
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": said}
    body["message"] = f"injected {code}"
    body["details"] = {"name": "x", "kind": "y"}
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code == 429 else {})


@contextlib.asynccontextmanager
async def proxied(kubeconfig: Path) -> AsyncIterator[tuple[FaultyProxy, Path]]:
    """The proxy before the kubeconfig's server, and a kubeconfig that leads through it."""
    proxy = FaultyProxy(*_server_of(kubeconfig))
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{tail:.*}", proxy.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    path = _led_through(kubeconfig, f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as proxy.session:
            yield proxy, path
    finally:
        proxy.arm("", "", Fault.BROKEN)  # lets go of what is stuck
        await runner.cleanup()


def _server_of(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return cluster["server"], trust


def _led_through(kubeconfig: Path, url: str) -> Path:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": url}
    path = kubeconfig.with_name(f"proxied-{kubeconfig.name}")
    path.write_text(yaml.safe_dump(config))
    return path
