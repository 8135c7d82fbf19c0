"""The real app in both modes: over the embedded store with a token file, and over a real API server with its identity.

Every test with `world` or `served` runs in both. Worker logs are plain files here; `worker_logs` has tests of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.controller.render import owned_by
from stoker.kube.client import MERGE_PATCH
from stoker.local.project_secrets import LocalSecrets
from stoker.local.store import KINDS, EmbeddedStore
from stoker.spec.event import EVENTS, Event, ObjectRef
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, Kind, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.queue import QUEUES, Queue, QueueResources, QueueSpec
from stoker.spec.report_tokens import exporter_token, worker_token
from stoker.spec.worker import LogPart
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.code.store import CodeStore
from stoker_api.curves.store import CurveStore
from stoker_api.declared_problems import ANYWHERE, problems_of
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.files.local import LocalFiles
from stoker_api.problems import MEDIA_TYPE
from stoker_api.routes import api_routes
from stoker_api.serve import serving
from stoker_api.services import Services
from stoker_api.streams.sse import StreamSettings
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import TokenFile
from stoker_api.usage.prices import Prices
from stoker_api.usage.store import UsageStore
from stoker_worker.log_times import LogTimes, offset_since, times_of
from tests.support.testbed.cluster import Cluster

from .cluster import PEOPLE, Bed, Hands, cluster_parts, node_is_free

REPORT_KEY = b"k" * 32
BASE = "http://127.0.0.1"
PRICES = Prices.parse(["tiny=2.00"])


@dataclass
class FileLogs:
    """A log source over one file per pod."""

    folder: Path
    ended: set[str] = field(default_factory=set)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def append(self, pod_uid: str, data: bytes, *, end: bool = False) -> None:
        async with self.grown:
            with (self.folder / pod_uid).open("ab") as file:
                file.write(data)
            if end:
                self.ended.add(pod_uid)
            self.grown.notify_all()

    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        path = self.folder / pod_uid
        if not path.exists():
            return None
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(offset)
            return LogPart(file.read(limit), size, pod_uid in self.ended)

    async def offset_since(self, pod_uid: str, since_s: float) -> int | None:
        path = self.folder / f"{pod_uid}.times"
        return offset_since(str(path), since_s) if path.exists() else 0

    async def times(self, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
        path = self.folder / f"{pod_uid}.times"
        return times_of(str(path), begin, end) if path.exists() else []

    def note(self, pod_uid: str, offset: int, at_s: float) -> None:
        times = LogTimes(str(self.folder / f"{pod_uid}.times"))
        times.note(offset, at_s)
        times.close()

    def _more(self, pod_uid: str, offset: int) -> bool:
        path = self.folder / pod_uid
        return pod_uid in self.ended or (path.exists() and path.stat().st_size > offset)

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self.grown:
                await self.grown.wait_for(lambda: self._more(pod_uid, offset))


@dataclass
class World:
    """The app, its parts, and hands to play operator and agent with."""

    deps: Deps
    app: Any
    logs: FileLogs
    keys: dict[str, str]
    base: str = BASE
    client: httpx.AsyncClient = field(init=False)

    @property
    def services(self) -> Services:
        return self.app.state.services  # type: ignore[no-any-return]

    @property
    def store(self) -> Any:
        """Where the tests play operator and agent."""
        return self.deps.store

    def name(self, who: str) -> str:
        """What jobs are stamped with."""
        return who

    async def worker_token(self, pod: Pod) -> str:
        return worker_token(REPORT_KEY, pod.uid)

    async def exporter_token(self, node: str = "node-a") -> str:
        return exporter_token(REPORT_KEY, node)

    def auth(self, who: str = "alice") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who]}"}

    async def call(self, method: str, path: str, *, who: str = "alice", **how: Any) -> httpx.Response:
        headers = {**self.auth(who), **how.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **how)

    async def submit(self, *, project: str = "alpha", who: str = "alice", **body: Any) -> httpx.Response:
        key = body.pop("key", None)
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.call(
            "POST", f"/v1/projects/{project}/jobs", who=who, headers=headers, json=body or job_body()
        )

    async def job(self, name: str = "one", **spec: Any) -> TrainingJob:
        """A stored job."""
        answer = await self.submit(**job_body(name, **spec))
        assert answer.status_code == 201, answer.text
        return TrainingJob.model_validate(answer.json())

    async def status(self, job: TrainingJob, **patch: Any) -> TrainingJob:
        """Play the operator: patch the job's status and wait until the api sees it."""
        stored = await self.store.patch_status(JOBS, job.key, patch, manager="operator")
        await self.deps.jobs.at_least(stored.metadata.resource_version, timeout_s=5)
        return stored  # type: ignore[no-any-return]

    async def pod(self, job: TrainingJob, attempt: int = 1, worker: int = 0) -> Pod:
        name = f"{job.metadata.name}-{attempt}-{worker}"
        stored = await self._pod(name, job)
        await self.deps.pods.at_least(stored.metadata.resource_version, timeout_s=5)
        return stored

    async def _pod(self, name: str, job: TrainingJob) -> Pod:
        meta = ObjectMeta(name=name, namespace=job.metadata.namespace, owner_references=(owned_by(job),))
        return await self.store.create(  # type: ignore[no-any-return]
            PODS, Pod(metadata=meta, spec=PodSpec(containers=(Container(),)))
        )

    async def running_pod(self, job: TrainingJob, node: str, status: dict[str, Any]) -> None:
        """The job's first worker, on a node, as its kubelet says."""
        meta = ObjectMeta(
            name=f"{job.metadata.name}-1-0", namespace=job.metadata.namespace, owner_references=(owned_by(job),)
        )
        pod = await self.store.create(PODS, Pod(metadata=meta, spec=PodSpec(node_name=node, containers=(Container(),))))
        await self.store.patch_status(PODS, pod.key, status, manager="kubelet")

    async def pod_finalizers(self, pod: Pod, *names: str) -> None:
        """With one, a deleted pod stays under deletion."""
        now = await self.store.get(PODS, pod.key)
        meta = now.metadata.model_copy(update={"finalizers": names})
        await self.store.update(PODS, now.model_copy(update={"metadata": meta}))

    async def strange_pod(self) -> Pod:
        """One that Stoker has nothing to do with, or not any more."""
        return Pod(metadata=ObjectMeta(name="x", uid="gone"), spec=PodSpec(containers=(Container(),)))

    async def event(self, job: TrainingJob, reason: str) -> Event:
        stored = await self.store.create(
            EVENTS,
            Event(
                metadata=ObjectMeta(name=f"{job.metadata.name}.{reason.lower()}", namespace=job.metadata.namespace),
                involved_object=ObjectRef(
                    kind="TrainingJob", namespace=job.metadata.namespace, name=job.metadata.name, uid=job.uid
                ),
                reason=reason,
                first_timestamp=self.deps.clock.now(),
            ),
        )
        await self.deps.events.at_least(stored.metadata.resource_version, timeout_s=5)
        return stored  # type: ignore[no-any-return]

    async def names(self) -> list[str]:
        return [str(job.key) for job in (await self.store.list(JOBS)).items]


@dataclass
class ClusterWorld(World):
    hands: Hands = field(kw_only=True)

    @property
    def store(self) -> Any:
        return self.hands.store

    def name(self, who: str) -> str:
        return f"system:serviceaccount:{PEOPLE[who]}:{who}"

    async def worker_token(self, pod: Pod, audience: str = "stoker") -> str:
        return await self.hands.pod_token(pod.metadata.name, pod.metadata.namespace, pod.uid, audience)

    async def pod_finalizers(self, pod: Pod, *names: str) -> None:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        await self.hands.send("PATCH", path, {"metadata": {"finalizers": names}}, MERGE_PATCH)

    async def running_pod(self, job: TrainingJob, node: str, status: dict[str, Any]) -> None:
        name, namespace = f"{job.metadata.name}-1-0", job.metadata.namespace
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        containers = [{"name": "worker", "image": "none", "command": ["true"], **limits}]
        await self.hands.pod(name, namespace, job, nodeName=node, containers=containers)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        await self.hands.send("PATCH", path, {"status": status}, MERGE_PATCH)

    async def strange_pod(self) -> Pod:
        return Pod.model_validate(await self.hands.pod("x", "alpha"))

    async def exporter_token(self, node: str = "node-a") -> str:
        return await self.hands.exporter_token(node)

    async def _pod(self, name: str, job: TrainingJob) -> Pod:
        return Pod.model_validate(await self.hands.pod(name, job.metadata.namespace, job))


def job_body(name: str | None = None, **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"spec": {"trainer": {"command": ["python", "train.py"]}, **spec}}
    if name is not None:
        body["metadata"] = {"name": name}
    return body


@pytest.fixture
def body() -> Callable[..., dict[str, Any]]:
    return job_body


@contextlib.asynccontextmanager
async def _embedded(path: Path, streams: StreamSettings, kinds: Iterable[Kind[Any]] = KINDS) -> AsyncIterator[World]:
    clock = SystemClock()
    tokens = TokenFile.open(path / "tokens")
    admin = tokens.ensure_admin().read_text().strip()
    keys = {
        "admin": admin,
        "alice": tokens.add("alice", "user", ["alpha"]),
        "bob": tokens.add("bob", "user", ["beta"]),
        "reader": tokens.add("reader", "reader", ["alpha"]),
        "garbage": "stk_garbage",
    }
    logs = FileLogs(path / "logs")
    usage = UsageStore(path / "usage.db", clock)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(usage)
        store = await stack.enter_async_context(EmbeddedStore(path / "store.db", clock, kinds=kinds))
        identity = TokenIdentity(tokens, REPORT_KEY)
        code = CodeStore(path / "code", clock)
        held = caches(store, clock)
        deps = Deps(
            store,
            **held,
            logs=logs,
            identity=identity,
            clock=clock,
            code=code,
            files=stack.enter_context(contextlib.closing(LocalFiles(path / "jobs", path / "workers", held["pods"]))),
            secrets=LocalSecrets(path / "secrets"),
            streams=streams,
            usage=usage,
            curves=stack.enter_context(CurveStore(path / "curves.db", clock)),
            prices=PRICES,
        )
        gpus = tuple(Gpu(uuid=f"GPU-{n}", index=n, model="Tiny", memory_bytes=8 << 30) for n in range(2))
        node = GPUNode(metadata=ObjectMeta(name="node-a"))
        await store.create(NODES, node)
        status = {"ready": True, "cpuMilli": 8000, "memoryBytes": 32 << 30}
        listed = [gpu.model_dump(mode="json", by_alias=True, exclude_none=True) for gpu in gpus]
        await store.patch_status(NODES, Key("", "node-a"), {**status, "gpus": listed}, manager="agent")
        yield World(deps, create_app(deps), logs, keys)


_beds: list[Bed] = []


@contextlib.asynccontextmanager
async def _cluster(bed: Bed, path: Path, streams: StreamSettings) -> AsyncIterator[World]:
    logs = FileLogs(path / "logs")
    async with cluster_parts(bed, path, logs, streams, PRICES) as (deps, hands):
        keys = {**bed.tokens, "garbage": "stk_garbage"}
        yield ClusterWorld(deps, create_app(deps), logs, keys, hands=hands)


NewWorld = Callable[[], contextlib.AbstractAsyncContextManager[World]]


@pytest.fixture(scope="session")
def the_bed(control_plane: Cluster) -> Iterator[Bed]:
    bed = Bed.make(control_plane)
    _beds.append(bed)
    yield bed
    _beds.remove(bed)
    bed.drop_node()


@pytest.fixture(params=["embedded", "kubernetes"])
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> NewWorld:
    """A world of the mode, its queues made and its caches running."""
    (tmp_path / "logs").mkdir()
    streams = StreamSettings(heartbeat_s=0.2, linger_s=0.05, send_timeout_s=1.0, of_caller=40)
    if request.param == "embedded":
        return lambda: _running(_embedded(tmp_path, streams))
    bed: Bed = request.getfixturevalue("the_bed")
    return lambda: _running(_cluster(bed, tmp_path, streams))


@pytest.fixture(scope="module", autouse=True)
def _no_node_left() -> Iterator[None]:
    yield
    for bed in _beds:
        bed.drop_node()


@contextlib.asynccontextmanager
async def _running(making: contextlib.AbstractAsyncContextManager[World]) -> AsyncIterator[World]:
    async with making as found:
        small = QueueSpec(limit=QueueResources(gpus=1), projects=("alpha",), highest_priority=10)
        await found.store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
        await found.store.create(QUEUES, Queue(metadata=ObjectMeta(name="small"), spec=small))
        async with running_caches(found.deps):
            await node_is_free(found.deps)
            yield found


async def _only_declared_problems(answer: httpx.Response) -> None:
    """Every problem that a test of the api meets is one that the document has of the operation."""
    if answer.headers.get("content-type") != MEDIA_TYPE:
        return
    await answer.aread()
    path, method = answer.request.url.path, answer.request.method
    for route in api_routes():
        if route.include_in_schema and method in route.methods and route.path_regex.match(path) and answer.content:
            allowed = (*ANYWHERE, *problems_of(route))
            assert answer.json()["code"] in allowed, f"{route.name} may answer {answer.text}: @refuses does not say so"
            return


HOOKS = {"response": [_only_declared_problems]}


@pytest.fixture
async def world(new_world: NewWorld) -> AsyncIterator[World]:
    """The app called in process: for everything that is no stream."""
    async with new_world() as found, found.services.running():
        transport = httpx.ASGITransport(found.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, event_hooks=HOOKS) as found.client:
            yield found


@pytest.fixture
async def served(new_world: NewWorld) -> AsyncIterator[World]:
    """The app behind uvicorn on a loopback port."""
    async with new_world() as found, serving(found.app) as port:
        found.base = f"{BASE}:{port}"
        async with httpx.AsyncClient(base_url=found.base, timeout=10, event_hooks=HOOKS) as found.client:
            yield found


@dataclass(frozen=True)
class Frame:
    event: str
    data: str
    id: str | None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def parse_frames(text: str) -> list[Frame]:
    """The complete events of an SSE text, as the WHATWG's parser dispatches them."""
    frames = []
    for block in text.split("\n\n")[:-1]:
        fields: dict[str, list[str]] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        if "data" in fields:
            ids = fields.get("id")
            frames.append(
                Frame(fields.get("event", ["message"])[-1], "\n".join(fields["data"]), ids[-1] if ids else None)
            )
    return frames


@pytest.fixture
def frames() -> Callable[[str], list[Frame]]:
    return parse_frames


Follow = Callable[..., AsyncIterator[Frame]]


@pytest.fixture
def follow() -> Follow:
    """Follow an SSE route frame by frame."""

    async def run(world: World, path: str, *, who: str = "alice", last_id: str | None = None) -> AsyncIterator[Frame]:
        headers = {**world.auth(who), "Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        async with world.client.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            held = ""
            async for text in answer.aiter_text():
                held += text
                whole, cut, held = held.rpartition("\n\n")
                for frame in parse_frames(whole + cut):
                    yield frame

    return run
