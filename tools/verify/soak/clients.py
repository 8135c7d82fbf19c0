"""The users of a soak: submitters that repeat until they have an answer, and visitors that disturb.

Owns what was accepted, how each job was seen to end, and what of it was wrong. Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import httpx

from tools.verify.soak.plan import QUEUES, Planned

AGAIN = frozenset({412, 429, 500, 502, 503, 504})
PATIENCE_S = 140.0
LOOK_S = 2.0


class Clients:
    def __init__(self, url: str, token: str, pages: Iterable[str], rng: random.Random) -> None:
        """`pages`: of metrics."""
        self._url, self._rng, self._pages = httpx.URL(url), rng, tuple(pages)
        self._head = f"Host: {self._url.host}\r\nAuthorization: Bearer {token}\r\n"
        self._http = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        self._recent: deque[Planned] = deque(maxlen=60)
        self._ended: dict[str, asyncio.Event] = {}
        self.accepted: dict[str, Planned] = {}
        self.ends: dict[str, dict[str, Any]] = {}
        """Job → its status when it was first seen ended."""
        self.broken: list[str] = []
        self.visits: Counter[str] = Counter()

    async def call(self, method: str, path: str, **how: Any) -> httpx.Response:
        """The first definite answer. Raises: TimeoutError."""
        conflicts = 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await self._http.request(method, path, **how)
                except httpx.TransportError:
                    await asyncio.sleep(0.2)
                    continue
                conflicts += answer.status_code == 409
                if answer.status_code not in AGAIN and (answer.status_code != 409 or conflicts > 3):
                    return answer
                await asyncio.sleep(min(2.0, float(answer.headers.get("Retry-After", "0.3"))))

    async def prepare(self) -> None:
        for name, spec in QUEUES.items():
            (await self.call("PUT", f"/v1/queues/{name}", json={"spec": spec})).raise_for_status()

    async def live(self, job: Planned, trainer: dict[str, Any]) -> None:
        """Submit it, ask of it what is planned, and wait until it has ended."""
        path, ended = f"/v1/projects/{job.project}/jobs", self._ended.setdefault(job.name, asyncio.Event())
        body = {"metadata": {"name": job.name}, "spec": job.spec | {"trainer": trainer}}
        try:
            answer = await self.call("POST", path, json=body, headers={"Idempotency-Key": job.name})
            if answer.status_code != 201:
                self.broken.append(f"{job.name}: refused, {answer.status_code} {answer.text[:200]}")
                return
            self.accepted[job.name] = job
            self._recent.append(job)
            for wait_s, act in job.acts:
                await asyncio.sleep(wait_s)
                how = ("DELETE", f"{path}/{job.name}") if act == "delete" else ("POST", f"{path}/{job.name}/{act}")
                answer = await self.call(*how)
                # 404 of a delete: an earlier try was carried out; 409: it had ended.
                if answer.status_code not in (200, 202, 204, 404 if act == "delete" else 409):
                    self.broken.append(f"{job.name}: {act} answers {answer.status_code} {answer.text[:200]}")
        except TimeoutError:
            self.broken.append(f"{job.name}: no definite answer within {PATIENCE_S:.0f} s")
        if job.ends and job.name in self.accepted:
            await ended.wait()

    async def look(self) -> None:
        """Until cancelled: which jobs have ended, and whether queues keep to their limits."""
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                for job in await self.listed(phase="Succeeded,Failed,Cancelled"):
                    name, status = job["metadata"]["name"], job["status"]
                    first = self.ends.setdefault(name, status)
                    if any(first.get(what) != status.get(what) for what in ("phase", "attempt")):
                        self.broken.append(f"{name} ended twice: {first}, then {status}")
                    if name in self._ended:
                        self._ended.pop(name).set()
                for queue in (await self._http.get("/v1/queues")).json().get("items", ()):
                    limit = queue["spec"].get("limit", {}).get("gpus")
                    if limit is not None and queue["usage"]["gpus"] > limit:
                        self.broken.append(f"queue {queue['metadata']['name']} holds {queue['usage']['gpus']} GPUs")
            await asyncio.sleep(LOOK_S)

    async def listed(self, **query: str) -> list[dict[str, Any]]:
        """Jobs of all projects. Raises: httpx.HTTPError."""
        found: list[dict[str, Any]] = []
        while True:
            answer = await self._http.get("/v1/projects/-/jobs", params={"limit": "500"} | query)
            page = answer.raise_for_status().json()
            found += page["items"]
            if not page.get("nextCursor"):
                return found
            query["cursor"] = page["nextCursor"]

    async def left(self) -> list[str]:
        """Jobs that are there, and nodes whose GPUs are held. Raises: httpx.HTTPError."""
        nodes = (await self._http.get("/v1/nodes")).raise_for_status().json()["items"]
        held = [f"GPUs held on {node['metadata']['name']}" for node in nodes if node["usage"]["gpus"]]
        return held + [f"job {job['metadata']['name']}" for job in await self.listed()]

    async def visit(self) -> None:
        """Until cancelled, one visitor after the other; a server that is killed may leave them in any state."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.2, 2))
            kind = self._rng.choice((self._follow, self._follow, self._leave, self._bad, self._look_up))
            try:
                async with asyncio.timeout(40):
                    await kind()
            except (OSError, TimeoutError, httpx.HTTPError) as error:
                self.visits[f"{type(error).__name__} met"] += 1
            self.visits[kind.__name__.strip("_").replace("_", " ")] += 1

    def _job(self) -> str:
        job = self._rng.choice(self._recent) if self._recent else None
        return f"/v1/projects/{job.project}/jobs/{job.name}" if job else "/v1/projects/alpha/jobs/none"

    async def _follow(self) -> None:
        what = self._rng.choice(("logs?follow=true", "logs?follow=false", "events"))
        until = time.monotonic() + self._rng.uniform(0.2, 8)
        headers = {"Accept": "text/event-stream"}
        async with self._http.stream("GET", f"{self._job()}/{what}", headers=headers, timeout=10) as answer:
            async for _piece in answer.aiter_raw():
                if time.monotonic() > until:
                    return

    async def _leave(self) -> None:
        """Ask for something, or for half of it, read next to nothing, and reset the connection after a while."""
        follow = f"GET {self._job()}/logs?follow=true HTTP/1.1\r\nAccept: text/event-stream\r\n{self._head}\r\n"
        submit = f"POST /v1/projects/alpha/jobs HTTP/1.1\r\nContent-Length: 5000\r\n{self._head}"
        listing = f"GET /v1/projects/-/jobs HTTP/1.1\r\n{self._head}\r\n"
        text = self._rng.choice((follow, submit[:60], submit, f'{submit}\r\n{{"spec": ', listing))
        _reader, writer = await asyncio.open_connection(self._url.host, self._url.port, limit=1024)
        try:
            writer.write(text.encode())
            await writer.drain()
            await asyncio.sleep(self._rng.choice((0, self._rng.uniform(2, 20))))
        finally:
            writer.transport.abort()

    async def _bad(self) -> None:
        submit = "/v1/projects/alpha/jobs"
        method, url, body = self._rng.choice(
            (
                ("POST", submit, b'{"spec": {"workers": -1, "x": '),
                ("POST", submit, b'{"spec": {"workers": 1000000000}}'),
                ("POST", submit, b"\xff" * 200_000),
                ("GET", "/v1/projects/-/jobs?limit=x&cursor=%ff", b""),
                ("PATCH", "/v1/nowhere/%2e%2e/%00", b""),
                ("GET", "/v1/usage?since=yesterday", b""),
            )
        )
        headers = {} if self._rng.random() < 0.5 else {"Authorization": "Bearer guess"}
        answer = await self._http.request(method, url, content=body, headers=headers)
        if answer.status_code < 400 or answer.status_code == 500:
            self.broken.append(f"{method} {url}: {answer.status_code}")

    async def _look_up(self) -> None:
        since = time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(time.time() - 3600))
        pages = (f"/v1/usage?since={since}&by=project,queue", "/v1/nodes", f"{self._job()}/explain", "/v1/queues")
        await self._http.get(self._rng.choice((*pages, *self._pages)))
