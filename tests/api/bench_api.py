"""Measures the api over its real store behind uvicorn: `python tests/api/bench_api.py [jobs]`.

Client and server share one process and its one core, so the figures are lower bounds. Not collected by pytest.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from stoker.local.store import EmbeddedStore
from stoker.spec.meta import ObjectMeta
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.worker import LogPart
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.serve import serving
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import TokenFile

BODY = json.dumps({"spec": {"trainer": {"command": ["true"]}, "gpusPerWorker": 1}}).encode()


class NoLogs:
    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        return None

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        return None


class Client:
    """A bare HTTP/1.1 client on one connection: it must not be what is measured."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._head = port, f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"

    async def open(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def call(self, method: str, path: str, body: bytes = b"", extra: str = "") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{extra}Content-Type: application/json\r\n"
        self._writer.write((head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return int(answer[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


def show(what: str, times: list[float], total_s: float) -> None:
    times.sort()
    p50, p99 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.99))
    print(f"{what:34} {len(times) / total_s:8.0f}/s   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms")


async def measure(what: str, clients: list[Client], count: int, make: object) -> None:
    times: list[float] = []
    numbers = iter(range(count))

    async def one(client: Client) -> None:
        for number in numbers:
            begun = time.perf_counter()
            status, body = await client.call(*make(number))  # type: ignore[operator]
            assert status < 300, body
            times.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(one(client) for client in clients))
    show(what, times, time.perf_counter() - begun)


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = SystemClock()
        tokens = TokenFile.open(folder)
        token = tokens.ensure_admin().read_text().strip()
        async with EmbeddedStore(Path(folder) / "store.db", clock) as store:
            await store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
            deps = Deps(store, **caches(store, clock), logs=NoLogs(), identity=TokenIdentity(tokens, b"k"), clock=clock)
            app = create_app(deps)
            async with running_caches(deps), serving(app) as port:
                jobs = "/v1/projects/default/jobs"
                one, eight = [await Client(port, token).open()], [await Client(port, token).open() for _ in range(8)]

                def submit(number: int) -> tuple[str, str, bytes, str]:
                    return "POST", jobs, BODY, f"Idempotency-Key: {id(clock)}-{next(keys)}\r\n"

                keys = iter(range(10**9))
                await measure("livez, 1 client", one, 500, lambda _: ("GET", "/livez"))
                await measure("submit, 1 client", one, min(count, 1000), submit)
                await measure("submit, 8 clients", eight, count - min(count, 1000), submit)
                name = next(iter(deps.jobs.values())).metadata.name
                print(f"{len(deps.jobs)} jobs")
                await measure("get", one, 500, lambda _: ("GET", f"{jobs}/{name}"))
                await measure("list 50", one, 300, lambda _: ("GET", jobs))
                await measure("list 50 of what is not there", one, 300, lambda _: ("GET", f"{jobs}?phase=Failed"))
                await measure("list 500", one, 50, lambda _: ("GET", f"{jobs}?limit=500"))
                await measure("metrics", one, 50, lambda _: ("GET", "/metrics"))
                for client in (*one, *eight):
                    client.close()
    print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    if len(sys.argv) > 2:
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, main(number))
        profile.dump_stats(sys.argv[2])
    else:
        asyncio.run(main(number))
