"""Who uses Stoker on the day: submitters that repeat until they have an answer, and visitors who come, look and go.

Owns what was accepted, how each job was seen to end, and what of it was wrong. Never breaks a server: `__main__`
does. Called by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections import Counter, deque
from typing import Any

import httpx

from tools.verify.soak.day import QUEUES, Planned
from tools.verify.soak.place import Place

AGAIN = frozenset({412, 429, 500, 502, 503, 504})
LOOK_S = 2.0
PATIENCE_S = 80.0
ENDED = "Succeeded,Failed,Cancelled"


class People:
    def __init__(self, place: Place, rng: random.Random) -> None:
        self._place, self._rng = place, rng
        self._head = {"Authorization": f"Bearer {place.token}"}
        self._http = httpx.AsyncClient(base_url=place.url, headers=self._head, timeout=30)
        self._recent: deque[Planned] = deque(maxlen=60)
        self.accepted: dict[str, Planned] = {}
        self.ends: dict[str, dict[str, Any]] = {}
        """Job → its status when it was first seen ended."""
        self.broken: list[str] = []
        self.refused: dict[str, str] = {}
        """Job → how its submit was refused for good."""
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
            answer = await self.call("PUT", f"/v1/queues/{name}", json={"spec": spec})
            assert answer.status_code in (200, 201), answer.text

    async def live(self, job: Planned) -> None:
        """Submit it and ask of it what is planned."""
        path = f"/v1/projects/{job.project}/jobs"
        body = {"metadata": {"name": job.name}, "spec": job.spec | {"trainer": self._place.trainer(job)}}
        try:
            answer = await self.call("POST", path, json=body, headers={"Idempotency-Key": job.name})
            if answer.status_code != 201:
                self.refused[job.name] = f"{answer.status_code} {answer.text[:200]}"
                print(job.name, self.refused[job.name], flush=True)
                return
            self.accepted[job.name] = job
            self._recent.append(job)
            for wait_s, act in job.acts:
                await asyncio.sleep(wait_s)
                how = ("DELETE", f"{path}/{job.name}") if act == "delete" else ("POST", f"{path}/{job.name}/{act}")
                answer = await self.call(*how)
                # 404 of a delete: an earlier try was carried out; 409: it had ended.
                if answer.status_code not in (200, 202, 204) + ((404,) if act == "delete" else (409,)):
                    self.broken.append(f"{job.name}: {act} answers {answer.status_code} {answer.text[:200]}")
        except TimeoutError:
            self.broken.append(f"{job.name}: no definite answer within {PATIENCE_S:.0f} s")

    async def look(self) -> None:
        """Until cancelled: which jobs have ended, and whether queues keep to their limits."""
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                for job in await self.listed(phase=ENDED):
                    self._ended(job["metadata"]["name"], job["status"])
                for queue in (await self._http.get("/v1/queues")).json().get("items", ()):
                    limit = queue["spec"].get("limit", {}).get("gpus")
                    if limit is not None and queue["usage"]["gpus"] > limit:
                        self.broken.append(f"queue {queue['metadata']['name']} holds {queue['usage']['gpus']} GPUs")
            await asyncio.sleep(LOOK_S)

    async def listed(self, **query: str) -> list[dict[str, Any]]:
        """Jobs of all projects. Empty where no answer is to be had. Raises: httpx.TransportError."""
        found: list[dict[str, Any]] = []
        while True:
            answer = await self._http.get("/v1/projects/-/jobs", params={"limit": "500"} | query)
            if answer.status_code != 200:
                return []
            page = answer.json()
            found += page["items"]
            if not page.get("nextCursor"):
                return found
            query["cursor"] = page["nextCursor"]

    def _ended(self, name: str, status: dict[str, Any]) -> None:
        first = self.ends.setdefault(name, status)
        for what in ("phase", "attempt"):
            if first.get(what) != status.get(what):
                self.broken.append(f"{name} ended twice: {what} {first.get(what)}, then {status.get(what)}")

    # visitors

    async def visit(self) -> None:
        """Until cancelled, one visitor after the other; what they are answered matters to none of them."""
        kinds = (self._follow, self._follow, self._never_read, self._half_sent, self._cut_off, self._bad, self._look_up)
        while True:
            await asyncio.sleep(self._rng.uniform(0.2, 2))
            kind = self._rng.choice(kinds)
            try:
                async with asyncio.timeout(40):
                    await kind()
            except Exception as error:  # noqa: BLE001  a server that is killed leaves clients in any state
                self.visits[f"{type(error).__name__} met"] += 1
            self.visits[kind.__name__.strip("_").replace("_", " ")] += 1

    def _job(self) -> str:
        if not self._recent:
            return "/v1/projects/alpha/jobs/none"
        job = self._rng.choice(self._recent)
        return f"/v1/projects/{job.project}/jobs/{job.name}"

    async def _follow(self) -> None:
        what = self._rng.choice(("logs?follow=true", "logs?follow=false", "events"))
        until = time.monotonic() + self._rng.uniform(0.2, 8)
        headers = {"Accept": "text/event-stream"}
        async with self._http.stream("GET", f"{self._job()}/{what}", headers=headers, timeout=10) as answer:
            async for _piece in answer.aiter_raw():
                if time.monotonic() > until:
                    return

    async def _never_read(self) -> None:
        head = f"GET {self._job()}/logs?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
        await self._raw(f"{head}Authorization: Bearer {self._place.token}\r\n\r\n", self._rng.uniform(2, 25))

    async def _half_sent(self) -> None:
        head = (
            f"POST /v1/projects/alpha/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n{self._head_line()}"
        )
        await self._raw(self._rng.choice((head[:60], head, f'{head}\r\n{{"spec": ')), self._rng.uniform(0.1, 15))

    async def _cut_off(self) -> None:
        """A reset in the middle of an answer."""
        await self._raw(f"GET /v1/projects/-/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n{self._head_line()}\r\n", 0.0)

    async def _bad(self) -> None:
        token = self._rng.choice((self._place.token, "guess", ""))
        how: dict[str, Any] = self._rng.choice(
            (
                {"method": "POST", "url": "/v1/projects/alpha/jobs", "content": b'{"spec": {"workers": -1, "x": '},
                {"method": "POST", "url": "/v1/projects/alpha/jobs", "json": {"spec": {"workers": 10**9}}},
                {"method": "POST", "url": "/v1/projects/alpha/jobs", "content": b"\xff" * 200_000},
                {"method": "GET", "url": "/v1/projects/-/jobs?limit=x&cursor=%ff"},
                {"method": "PATCH", "url": "/v1/nowhere/%2e%2e/%00"},
                {"method": "GET", "url": "/v1/usage?since=yesterday"},
            )
        )
        answer = await self._http.request(**how, headers={"Authorization": f"Bearer {token}"})
        if answer.status_code < 400 or answer.status_code == 500:
            self.broken.append(f"{how['method']} {how['url']}: {answer.status_code}")

    async def _look_up(self) -> None:
        since = time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(time.time() - 3600))
        pages = (f"/v1/usage?since={since}&by=project,queue", "/v1/nodes", f"{self._job()}/explain", "/v1/queues")
        page = self._rng.choice((*pages, *self._place.pages))
        await self._http.get(page)

    def _head_line(self) -> str:
        return f"Authorization: Bearer {self._place.token}\r\n"

    async def _raw(self, text: str, hold_s: float) -> None:
        """Send it, read next to nothing, hold the connection for a while and reset it."""
        url = httpx.URL(self._place.url)
        _reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        try:
            writer.write(text.encode())
            await writer.drain()
            await asyncio.sleep(hold_s)
        finally:
            if (sock := writer.get_extra_info("socket")) is not None:  # None: the server was faster
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def close(self) -> None:
        await self._http.aclose()
