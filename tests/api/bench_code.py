"""What users' code costs the server: `python tests/api/bench_code.py [--files N] [--workers N]`.

A folder of N files is sent over a real connection, asked for again, and fetched by a gang at once. Client and server
share one process: the figures are lower bounds. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import tempfile
import time
from hashlib import sha256
from pathlib import Path

import httpx

from stoker.controller.render import owned_by
from stoker.local.store import EmbeddedStore
from stoker.spec.code import PACK_TYPE, CodeFile, CodeManifest
from stoker.spec.job import JOBS, TrainingJob, TrainingJobSpec
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.report_tokens import worker_token
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.code.store import CodeStore
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.serve import serving
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import TokenFile

KEY = b"k" * 32


class NoLogs:
    async def read(self, pod_uid, offset, limit):
        return None

    async def wait_growth(self, pod_uid, offset, timeout_s):
        return None


@contextlib.contextmanager
def timed(what: str):
    begun, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{what:<40} {wall:7.3f} s, CPU {cpu:7.3f} s, peak {peak_mib} MiB")


async def main(files: int, workers: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, clock = Path(folder), SystemClock()
        tokens = TokenFile.open(path / "tokens")
        auth = {"Authorization": "Bearer " + tokens.ensure_admin().read_text().strip()}
        async with EmbeddedStore(path / "store.db", clock) as store:
            await store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
            code = CodeStore(path / "code", clock)
            deps = Deps(
                store,
                **caches(store, clock),
                logs=NoLogs(),
                identity=TokenIdentity(tokens, KEY),
                clock=clock,
                code=code,
            )
            async with running_caches(deps), serving(create_app(deps)) as port:
                base = f"http://127.0.0.1:{port}"
                async with httpx.AsyncClient(
                    base_url=base, timeout=600, limits=httpx.Limits(max_connections=None)
                ) as client:
                    await run(client, auth, deps, files, workers, size)


async def run(client, auth, deps, files, workers, size) -> None:
    contents = [os.urandom(size) for _ in range(files)]
    named = [(f"package/module_{n:05}.py", data) for n, data in enumerate(contents)]
    manifest = CodeManifest(
        files=tuple(CodeFile(path=path, sha256=sha256(data).hexdigest(), size=len(data)) for path, data in named)
    )
    body, digest = manifest.canonical(), manifest.digest()
    url = f"/v1/projects/default/code/{digest}"
    typed = {**auth, "Content-Type": "application/json"}
    print(f"{files} files of {size} bytes, manifest of {len(body)} bytes, {workers} workers")
    with timed("PUT: all is missing"):
        answer = await client.put(url, content=body, headers=typed)
    assert answer.status_code == 409 and len(answer.json()["missing"]) == files

    async def pack():
        for data in contents:
            yield b"%s %d\n%s" % (sha256(data).hexdigest().encode(), len(data), data)

    with timed("POST of all files"):
        answer = await client.post(
            "/v1/projects/default/code/files", content=pack(), headers={**auth, "Content-Type": PACK_TYPE}
        )
    assert answer.json()["stored"] == files, answer.text
    with timed("PUT: complete"):
        assert (await client.put(url, content=body, headers=typed)).status_code == 201
    with timed("GET: nothing to send"):
        assert (await client.get(url, headers=auth)).status_code == 200
    trainer = Trainer(command=("python",), code=digest)
    meta = ObjectMeta(name="one", namespace="default")
    job = await deps.store.create(JOBS, TrainingJob(metadata=meta, spec=TrainingJobSpec(trainer=trainer)))
    pods = []
    for worker in range(workers):
        meta = ObjectMeta(name=f"one-1-{worker}", namespace="default", owner_references=(owned_by(job),))
        pods.append(await deps.store.create(PODS, Pod(metadata=meta, spec=PodSpec(containers=(Container(),)))))
    await deps.pods.at_least(pods[-1].metadata.resource_version, timeout_s=10)

    async def fetch(pod) -> int:
        token = {"Authorization": "Bearer " + worker_token(KEY, pod.uid)}
        got = 0
        async with client.stream("GET", "/v1/report/code", headers=token) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_raw(64 << 10):
                got += len(piece)
        return got

    with timed("fetch by one worker"):
        expected = await fetch(pods[0])
    assert expected > files * size
    with timed(f"fetch by {workers} workers at once"):
        assert set(await asyncio.gather(*map(fetch, pods))) == {expected}
    with timed("sweep"):
        assert await deps.code.sweep({}) == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=6_000)
    parser.add_argument("--workers", type=int, default=100)
    given = parser.parse_args()
    asyncio.run(main(given.files, given.workers, given.size))
