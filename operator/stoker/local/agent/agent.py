"""The node agent: carries pods bound to this node from their creation to their end, like kubelet.

Owns the loop around the workers' lives (`life`): which worker is looked at and when, the node's own object, and the
removal of folders that are not needed any more. Level-triggered and crash-only: killed at any point, the next agent
finds the same folders and goes on. Never decides where or when something runs. Called by `stoker up`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stoker.local.project_secrets import LocalSecrets
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.spec.pod import Pod
from stoker.spec.quantity import format_duration
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import AlreadyExists, NotFound, Store, StoreError
from stoker.store.seam import Seam
from stoker.store.workqueue import QueueShutDown, WorkQueue
from stoker_worker.bundle import build_folder

from .folders import Places, look_at_all, remove_unused
from .inventory import Inventory
from .leftovers import pod_uid_of
from .life import MANAGER, Lives, Surroundings
from .memory_groups import MemoryGroups
from .retention import remove_old_results

T = TypeVar("T")

logger = logging.getLogger(__name__)

CONSUMERS = 64  # coroutines; most of them wait, for a scan, a write, or what will not die
THREADS = 4
INVENTORY_EVERY_S = 30.0
SWEEP_EVERY_S = 30.0
RETENTION_EVERY_S = 600.0


class NodeAgent:
    """`run` until cancelled; its workers live on."""

    def __init__(
        self,
        store: Store,
        pods: WatchCache[Pod],
        datadir: Places,
        *,
        node_name: str,
        inventory: Inventory,
        clock: Clock,
        seam: Seam,
        report_url: Callable[[], str],
        report_key: bytes,
        cpu_milli: int,
        memory_bytes: int,
        log_bytes: int,
        job_exists: Callable[[str], bool],
        pass_env: Collection[str] = (),
        keep_results_s: float | None = None,
        gpus_as_known: Callable[[tuple[Gpu, ...]], tuple[Gpu, ...]] = lambda gpus: gpus,
        memory_groups: MemoryGroups | None = None,
    ) -> None:
        """`pods` is kept current by the caller. `job_exists(uid)`: True also where it is not known yet.

        `report_url`: the api's address, '' where there is none; asked at each launch. `pass_env`: what workers get of
        this process's environment besides a few names. `log_bytes`: what each worker's log may hold.
        `keep_results_s`: how long what a job saved stays once the job is deleted; None: for ever.
        `gpus_as_known`: with their health, where that is known.
        `memory_groups`: what holds workers to their memory; None: nothing does.
        """
        self._pods = pods
        self._datadir = datadir
        self._node_name = node_name
        self._inventory = inventory
        self._clock = clock
        self._seam = seam
        self._job_exists = job_exists
        self._keep_results_s = keep_results_s
        self._node = NodeObject(store, node_name, cpu_milli, memory_bytes)
        self._queue: WorkQueue[str] = WorkQueue(clock)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="agent")
        around = Surroundings(
            datadir=datadir,
            secrets=LocalSecrets(datadir.secrets),
            program=build_folder(str(datadir.workers.parent / "run")),
            host_env=dict(os.environ),
            pass_env=pass_env,
            report_url=report_url,
            report_key=report_key,
            log_bytes=log_bytes,
            gpus_as_known=gpus_as_known,
            memory_groups=memory_groups or MemoryGroups(None, datadir.workers),
        )
        self._lives = Lives(store, self._queue, around, clock=clock, seam=seam, threads=self._threads)
        self.ready = asyncio.Event()
        """Set once earlier workers are found again and the node is registered."""

    @property
    def alive(self) -> int:
        """Workers whose supervisor lives."""
        return sum(worker.alive for worker in self._lives.workers.values())

    async def run(self) -> None:
        """Never returns. Raises: OSError, StoreError if it can't even begin."""
        unsubscribe: Callable[[], None] | None = None
        try:
            await self._pods.synced()
            for found in await self._in_thread(look_at_all, self._datadir.workers):
                self._lives.find_again(found, self._pods.by_uid(found.pod_uid))
            await self._read_inventory()
            unsubscribe = self._pods.subscribe(self._on_change)
            self.ready.set()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CONSUMERS):
                    tasks.create_task(self._consume())
                tasks.create_task(self._every(INVENTORY_EVERY_S, self._read_inventory))
                tasks.create_task(self._every(SWEEP_EVERY_S, self.sweep))
                tasks.create_task(self._every(RETENTION_EVERY_S, self.remove_old_results))
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self._queue.shutdown()
            self._threads.shutdown(cancel_futures=True)
            self._lives.let_go()

    async def sweep(self) -> None:
        """Remove the folders of ended workers whose pod and job are both gone, and such jobs' own if left empty."""
        ended = self._lives.ended
        for pod_uid, job_uid in list(ended.items()):
            if self._pods.by_uid(pod_uid) is None and not (job_uid and self._job_exists(job_uid)):
                if job_uid and all(one.job_uid != job_uid for one in self._lives.workers.values()):
                    # First: the worker's folder is what brings us here again if we die in between.
                    await self._in_thread(remove_unused, self._datadir.jobs / job_uid)
                await self._in_thread(self._lives.folder(pod_uid).remove, self._seam)
                del ended[pod_uid]

    async def remove_old_results(self) -> None:
        """Remove what jobs saved that were deleted long enough ago."""
        keep_s = self._keep_results_s
        if keep_s is None:
            return
        running = {worker.job_uid for worker in self._lives.workers.values()}
        removed = await self._in_thread(
            remove_old_results,
            self._datadir.jobs,
            keep_s,
            self._clock.now().timestamp(),
            lambda uid: uid in running or self._job_exists(uid),
        )
        for uid in removed:
            logger.info("removed what job %s had saved: it was deleted over %s ago", uid, format_duration(keep_s))

    def _on_change(self, change: Change[Pod]) -> None:
        for pod in (change.old, change.new):
            if pod is not None and pod.spec.node_name == self._node_name:
                self._queue.add(pod.uid)

    async def _consume(self) -> None:
        while True:
            try:
                pod_uid = await self._queue.get()
            except QueueShutDown:
                return
            try:
                await self._lives.step(pod_uid, self._pod(pod_uid))
            except (StoreError, OSError) as error:
                wait_s = self._queue.add_backoff(pod_uid)
                logger.warning("worker %s: %s; again in %.1f s", pod_uid, error, wait_s)
            except Exception:  # the edge: one poison pod must not stop the others
                self._queue.add_backoff(pod_uid)
                logger.exception("worker %s", pod_uid)
            else:
                self._queue.forget(pod_uid)
            finally:
                self._queue.done(pod_uid)

    def _pod(self, pod_uid: str) -> Pod | None:
        pod = self._pods.by_uid(pod_uid)
        return pod if pod is not None and pod.spec.node_name == self._node_name else None

    async def _read_inventory(self) -> None:
        leases, workers = self._lives.leases, self._lives.workers
        gpus = await self._inventory.read(lambda: leases.holders, lambda pid: pod_uid_of(pid) in workers)
        leases.set_inventory(gpus)
        await self._node.update(gpus)

    async def _every(self, seconds: float, act: Callable[[], Coroutine[None, None, None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await act()
            except (StoreError, OSError) as error:
                logger.warning("%s: %s", act.__name__, error)
            except Exception:  # the edge: what fails once in a while must not end the agent
                logger.exception("%s", act.__name__)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class NodeObject:
    """This machine as a GPUNode object: registered once, kept current from the inventory."""

    def __init__(self, store: Store, name: str, cpu_milli: int, memory_bytes: int) -> None:
        self._store = store
        self._key = Key("", name)
        self._cpu_milli = cpu_milli
        self._memory_bytes = memory_bytes
        self._written: dict[str, Any] | None = None

    async def update(self, gpus: Sequence[Gpu]) -> None:
        """Nothing is written when nothing changed. Raises: StoreError."""
        status = GPUNodeStatus(
            ready=True, cpu_milli=self._cpu_milli, memory_bytes=self._memory_bytes, gpus=tuple(gpus)
        ).model_dump(mode="json", by_alias=True)
        if status == self._written:
            return
        try:
            await self._patch(status)
        except NotFound:
            try:
                await self._store.create(NODES, GPUNode(metadata=ObjectMeta(name=self._key.name)))
            except AlreadyExists:
                pass
            await self._patch(status)
        self._written = status

    async def _patch(self, status: dict[str, Any]) -> None:
        await self._store.patch_status(NODES, self._key, status, manager=MANAGER)
