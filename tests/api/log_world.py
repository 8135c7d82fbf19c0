"""The real app over the real embedded store with shipped logs, and hands to play operator, kubelet and worker with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from stoker.controller.render import owned_by
from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob, TrainingJobSpec
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.report_tokens import worker_token
from stoker.spec.worker import ExitRecord
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.serve import serving
from stoker_api.services import Services
from stoker_api.streams.sse import StreamSettings
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import TokenFile
from stoker_api.worker_logs.source import WorkerLogSource
from stoker_api.worker_logs.storage import LogLimits, ShippedLogs

KEY = b"k" * 32


class KubeletsCopy:
    """What the kubelet has of each pod's stdout."""

    def __init__(self) -> None:
        self.copies: dict[str, bytes] = {}
        self.gone: set[str] = set()
        self.ended = asyncio.Event()
        self.asked = 0
        self.pause_s = 0.0

    async def stream(self, pod: Pod, *, follow: bool) -> AsyncIterator[bytes]:
        self.asked += 1
        if pod.uid in self.gone:
            raise LookupError("no such container")
        await asyncio.sleep(self.pause_s)
        copy = self.copies[pod.uid]
        for at in range(0, len(copy), 1000):
            yield copy[at : at + 1000]
        if follow:
            await self.ended.wait()


@dataclass
class LogWorld:
    deps: Deps
    shipped: ShippedLogs
    source: WorkerLogSource
    client: httpx.AsyncClient
    admin: str
    url: str
    services: Services

    async def job(self, name: str = "one") -> TrainingJob:
        meta = ObjectMeta(name=name, namespace="alpha")
        spec = TrainingJobSpec(trainer=Trainer(command=("train",)))
        job = await self.deps.store.create(JOBS, TrainingJob(metadata=meta, spec=spec))
        return await self.status(job, attempt=1, phase="Running")

    async def status(self, job: TrainingJob, **patch: Any) -> TrainingJob:
        job = await self.deps.store.patch_status(JOBS, job.key, patch, manager="operator")
        await self.deps.jobs.at_least(job.metadata.resource_version, timeout_s=5)
        return job

    async def pod(self, job: TrainingJob, attempt: int = 1, *, ran_s: float = 0.0) -> Pod:
        meta = ObjectMeta(name=f"{job.metadata.name}-{attempt}-0", namespace="alpha", owner_references=(owned_by(job),))
        pod = await self.deps.store.create(PODS, Pod(metadata=meta, spec=PodSpec(containers=(Container(),))))
        began = (datetime.now(UTC) - timedelta(seconds=ran_s)).isoformat()
        return await self._set_status(pod, "Running", {"running": {"startedAt": began}})

    async def end(self, pod: Pod, log_bytes: int | None) -> Pod:
        """`log_bytes` None: it was killed and left no record."""
        message = ""
        if log_bytes is not None:
            record = ExitRecord(
                pod_uid=pod.uid, started_at=1, finished_at=2, stop_requested=False, exit_code=0, log_bytes=log_bytes
            )
            message = record.model_dump_json(by_alias=True)
        return await self._set_status(pod, "Succeeded", {"terminated": {"exitCode": 0, "message": message}})

    async def _set_status(self, pod: Pod, phase: str, state: dict[str, Any]) -> Pod:
        patch = {"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]}
        pod = await self.deps.store.patch_status(PODS, pod.key, patch, manager="kubelet")
        await self.deps.pods.at_least(pod.metadata.resource_version, timeout_s=5)
        return pod

    async def delete(self, kind: Any, thing: Any, cache: WatchCache[Any]) -> None:
        await self.deps.store.delete(kind, thing.key)
        await cache.wait_for(lambda cache: cache.by_uid(thing.uid) is None, timeout_s=5)

    async def post(self, pod: Pod | str, offset: int, data: bytes, *, lost: bool = False, **headers: str) -> Any:
        uid = pod if isinstance(pod, str) else pod.uid
        headers = {"Authorization": f"Bearer {worker_token(KEY, uid)}", "Content-Type": "application/octet-stream"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        path = f"/v1/report/log?offset={offset}" + ("&lost=true" if lost else "")
        return await self.client.post(path, content=data, headers=headers)

    async def log(self, job: TrainingJob, **query: Any) -> httpx.Response:
        path = f"/v1/projects/alpha/jobs/{job.metadata.name}/logs"
        return await self.client.get(path, params=query, headers={"Authorization": f"Bearer {self.admin}"})


@contextlib.asynccontextmanager
async def log_world(
    folder: Path,
    store: EmbeddedStore,
    tail: KubeletsCopy | None = None,
    limits: LogLimits | None = None,
    port: int = 0,
) -> AsyncIterator[LogWorld]:
    clock = SystemClock()
    tokens = TokenFile.open(folder / "tokens")
    admin = tokens.ensure_admin().read_text().strip()
    jobs, pods = WatchCache(store, JOBS, clock=clock), WatchCache(store, PODS, clock=clock)
    shipped = ShippedLogs(folder / "logs", limits)
    source = WorkerLogSource(shipped, pods, jobs, clock, tail)
    streams = StreamSettings(heartbeat_s=0.2, linger_s=0.05, send_timeout_s=5.0)
    identity = TokenIdentity(tokens, KEY)
    deps = Deps(
        store,
        **caches(store, clock, jobs=jobs, pods=pods),
        logs=source,
        identity=identity,
        clock=clock,
        streams=streams,
    )
    app = create_app(deps)
    async with running_caches(deps), source.running(), serving(app, port=port) as bound:
        url = f"http://127.0.0.1:{bound}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            yield LogWorld(deps, shipped, source, client, admin, url, app.state.services)


@contextlib.asynccontextmanager
async def store_in(folder: Path) -> AsyncIterator[EmbeddedStore]:
    async with EmbeddedStore(folder / "store.db", SystemClock()) as store:
        await store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
        yield store
