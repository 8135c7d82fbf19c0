"""An operator behind the faulty proxy: all it knows and every connection it has can be taken away at any byte."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from stoker.controller.jobs import PODS_BY_JOB, job_of
from stoker.controller.operator import Operator
from stoker.controller.renderers import ClusterRenderer
from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.kube.watch import Patience
from stoker.spec.job import JOBS
from stoker.spec.node import NODES
from stoker.spec.queue import QUEUES
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock

from .operator_world import IMAGES, SETTINGS

PATIENCE = Patience(silence_s=4.0, lasts_s=(300.0, 600.0))
"""A dead watch is given up after 4 s, not 100, so that a sweep ends."""


class Subject:
    """One operator's life; `end` is what SIGKILL leaves of it: nothing."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        clock = SystemClock()
        client = await self._stack.enter_async_context(KubeClient.from_config(kubeconfig=self._kubeconfig, clock=clock))
        store = KubeStore(client, clock, patience=PATIENCE)
        jobs, queues = WatchCache(store, JOBS, clock=clock), WatchCache(store, QUEUES, clock=clock)
        nodes, runtimes = WatchCache(store, NODES, clock=clock), WatchCache(store, RUNTIMES, clock=clock)
        pods, others = cluster_pods(store, clock, {PODS_BY_JOB: job_of})
        caches = (jobs, queues, nodes, runtimes, pods, others)
        self._tasks = [asyncio.create_task(cache.run()) for cache in caches]
        for cache in caches:
            await cache.synced()
        operator = Operator(
            store,
            jobs=jobs,
            queues=queues,
            nodes=nodes,
            pods=pods,
            clock=clock,
            settings=SETTINGS,
            others=others,
            runtimes=runtimes,
            renderer=ClusterRenderer(runtimes, IMAGES),
        )
        self._tasks.append(asyncio.create_task(operator.run()))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        with suppress(Exception):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
