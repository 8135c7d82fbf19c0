"""The real api over the real embedded store, in a thread; the tests play the operator and the agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from stoker.controller.render import owned_by
from stoker.local.store import EmbeddedStore
from stoker.spec.event import EVENTS, Event, ObjectRef
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, GPUNode
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.usage import GpuReceipt
from stoker.spec.worker import LogPart
from stoker.store.clock import SystemClock
from stoker_api.app import create_app
from stoker_api.code.store import CodeStore
from stoker_api.curves.store import CurveStore
from stoker_api.deps import Deps, caches, running_caches
from stoker_api.files.local import LocalFiles
from stoker_api.serve import serving
from stoker_api.streams.sse import StreamSettings
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import TokenFile
from stoker_api.usage.prices import Prices
from stoker_api.usage.store import JobFacts, UsageStore

T = TypeVar("T")


class Logs:
    """Logs in memory; `grow` may be called from any thread."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.ended: set[str] = set()
        self.written: dict[str, list[tuple[int, float]]] = {}
        """By pod: from which offset on what was written when."""

    async def offset_since(self, pod_uid: str, since_s: float) -> int | None:
        return next((offset for offset, at_s in self.written.get(pod_uid, [(0, since_s)]) if at_s >= since_s), None)

    async def times(self, pod_uid: str, begin: int, end: int) -> list[tuple[int, float]]:
        found = self.written.get(pod_uid, [])
        before = [at_s for offset, at_s in found if offset <= begin][-1:]
        return [(begin, at_s) for at_s in before] + [one for one in found if begin < one[0] < end]

    async def read(self, pod_uid: str, offset: int, limit: int) -> LogPart | None:
        found = self.data.get(pod_uid)
        if found is None:
            return None
        return LogPart(found[offset : offset + limit], len(found), pod_uid in self.ended)

    async def wait_growth(self, pod_uid: str, offset: int, timeout_s: float) -> None:
        for _ in range(max(1, int(timeout_s / 0.01))):
            if pod_uid in self.ended or len(self.data.get(pod_uid, b"")) > offset:
                return
            await asyncio.sleep(0.01)


class Live:
    """An api in a thread, as `stoker up` would run it; `restart` cuts every connection and comes back on the port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.logs = Logs()
        self.deps: Deps
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(20)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        clock = SystemClock()
        tokens = TokenFile.open(self.home)
        tokens.ensure_admin()
        self.stop, self.again = asyncio.Event(), asyncio.Event()
        settings = StreamSettings(heartbeat_s=0.2, linger_s=0.02, send_timeout_s=5)
        async with contextlib.AsyncExitStack() as stack:
            self.usage = stack.enter_context(UsageStore(self.home / "usage.db", clock))
            store = await stack.enter_async_context(EmbeddedStore(self.home / "store.db", clock))
            await store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
            held = caches(store, clock)
            files = LocalFiles(self.home / "jobs", self.home / "workers", held["pods"])
            stack.callback(files.close)
            self.deps = Deps(
                store,
                **held,
                files=files,
                logs=self.logs,
                code=CodeStore(self.home / "code", clock),
                identity=TokenIdentity(tokens, b"k" * 32),
                clock=clock,
                streams=settings,
                usage=self.usage,
                curves=stack.enter_context(CurveStore(self.home / "curves.db", clock)),
                prices=Prices.parse(["tiny=2.00"]),
            )
            async with running_caches(self.deps):
                port = 0
                while not self.stop.is_set():
                    async with serving(create_app(self.deps), port=port) as port:
                        text = json.dumps({"url": f"http://127.0.0.1:{port}", "pid": 1})
                        (self.home / "endpoint.json").write_text(text)
                        self.ready.set()
                        await self.again.wait()
                        self.again.clear()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def restart(self) -> None:
        self.ready.clear()
        self.loop.call_soon_threadsafe(self.again.set)
        assert self.ready.wait(20)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.loop.call_soon_threadsafe(self.again.set)
        self.thread.join(20)
        assert not self.thread.is_alive()

    # playing the operator and the agent

    def status(self, job: TrainingJob, **patch: Any) -> None:
        stored = self.do(self.deps.store.patch_status(JOBS, job.key, patch, manager="operator"))
        self.do(self.deps.jobs.at_least(stored.metadata.resource_version, timeout_s=5))

    def event(self, job: TrainingJob, reason: str) -> None:
        event = Event(
            metadata=ObjectMeta(name=f"{job.metadata.name}.{reason.lower()}", namespace=job.metadata.namespace),
            involved_object=ObjectRef(kind="TrainingJob", name=job.metadata.name, uid=job.uid),
            reason=reason,
            message=f"it was {reason}",
            first_timestamp=SystemClock().now(),
        )
        self.do(self.deps.store.create(EVENTS, event))

    def receipts(self, *receipts: GpuReceipt) -> None:
        """What exporters have sent of jobs, be they there or gone."""
        facts = {
            one.job_uid: JobFacts(one.job_uid, one.project, one.job_name, "default", "admin", 0.0) for one in receipts
        }
        assert len(self.do(self.usage.take(facts.values(), receipts)).new) == len(receipts)

    def gpus(self) -> None:
        """A node with two GPUs."""
        listed = [{"uuid": f"GPU-{n}", "index": n, "model": "Tiny", "memoryBytes": 8 << 30} for n in range(2)]
        status = {"ready": True, "cpuMilli": 8000, "memoryBytes": 32 << 30, "gpus": listed}
        self.do(self.deps.store.create(NODES, GPUNode(metadata=ObjectMeta(name="node-a"))))
        stored = self.do(self.deps.store.patch_status(NODES, Key("", "node-a"), status, manager="agent"))
        self.do(self.deps.nodes.at_least(stored.metadata.resource_version, timeout_s=5))

    def pod(self, job: TrainingJob, attempt: int = 1) -> str:
        name = f"{job.metadata.name}-{attempt}-0"
        meta = ObjectMeta(name=name, namespace=job.metadata.namespace, owner_references=(owned_by(job),))
        pod = self.do(self.deps.store.create(PODS, Pod(metadata=meta, spec=PodSpec(containers=(Container(),)))))
        self.do(self.deps.pods.at_least(pod.metadata.resource_version, timeout_s=5))
        return pod.uid
