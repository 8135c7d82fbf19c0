"""An operator behind the faulty proxy: all it knows and every connection it has can be taken away at any byte."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from pathlib import Path

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.kube.watch import WatchPatience
from stoker.store.clock import SystemClock

from .operator_world import OnCluster

PATIENCE = WatchPatience(silence_s=4.0, lasts_s=(300.0, 600.0))
"""A dead watch is given up after 4 s, not 100, so that a sweep ends."""


class Subject:
    """One operator's life; `end` is what SIGKILL leaves of it: nothing."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._stack = AsyncExitStack()

    async def begin(self) -> None:
        clock = SystemClock()
        client = await self._stack.enter_async_context(KubeClient.from_config(kubeconfig=self._kubeconfig, clock=clock))
        world = OnCluster(KubeStore(client, clock, patience=PATIENCE))
        await self._stack.enter_async_context(world.following())
        world.start()

    async def end(self) -> None:
        with suppress(Exception):
            await self._stack.aclose()
