"""GPUs that their device plug-in calls unhealthy, as the kubelet writes it into the status of the pods that have them.

Level-triggered on pods, where a cluster has ResourceHealthStatus; elsewhere there are none. What it means is
`stoker.life.gpu_health`'s, keeping it `gpu_health`'s. Run by `services`.
"""

from __future__ import annotations

import logging

from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.store.backlog import Backlog
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import StoreError

from .gpu_health import GpuHealthKeeper

log = logging.getLogger(__name__)


class UnhealthyDevices:
    def __init__(self, pods: WatchCache[Pod], keeper: GpuHealthKeeper, clock: Clock) -> None:
        self._pods, self._keeper = pods, keeper
        self._reported: Backlog[Key, Pod] = Backlog(clock)
        """What kubelets have reported and is not kept yet."""

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._pods.subscribe(self._on_pod)
        try:
            await self._reported.run(self._keep)
        finally:
            unsubscribe()

    def _on_pod(self, change: Change[Pod]) -> None:
        """A pod that has ended no longer counts: its GPU may be another's."""
        if change.new is None or change.new.ended or not any(change.new.unhealthy_devices):
            self._reported.drop(change.key)
        else:
            self._reported.put(change.key, change.new)

    async def _keep(self, pod: Pod) -> bool:
        try:
            return await self._keeper.take_devices(pod)
        except StoreError as error:
            log.warning("the health of the devices of pod %s is not kept yet: %s", pod.key, error)
            return False
