"""GPUs that their device plug-in calls unhealthy, as the kubelet writes it into the status of the pods that have them.

Level-triggered on pods, where a cluster has ResourceHealthStatus; elsewhere there are none. What it means is
`stoker.life.gpu_health`'s, keeping it `gpu_health`'s. Run by `services`.
"""

from __future__ import annotations

import asyncio
import logging

from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import StoreError

from .gpu_health import GpuHealthKeeper

log = logging.getLogger(__name__)

_AGAIN_S = 5.0


class DeviceHealth:
    def __init__(self, pods: WatchCache[Pod], keeper: GpuHealthKeeper, clock: Clock) -> None:
        self._pods, self._keeper, self._clock = pods, keeper, clock
        self._left: dict[Key, Pod] = {}
        """What the kubelet has said and is not kept yet."""
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._pods.subscribe(self._on_pod)
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                for key, pod in list(self._left.items()):
                    await self._keep(key, pod)
                if self._left:
                    await self._clock.sleep(_AGAIN_S)
                    self._woken.set()
        finally:
            unsubscribe()

    def _on_pod(self, change: Change[Pod]) -> None:
        """A pod that has ended says nothing more: its GPU may be another's."""
        if change.new is None or change.new.ended or not any(change.new.unhealthy_devices):
            self._left.pop(change.key, None)
        else:
            self._left[change.key] = change.new
            self._woken.set()

    async def _keep(self, key: Key, pod: Pod) -> None:
        try:
            is_kept = await self._keeper.take_devices(pod)
        except StoreError as error:
            log.warning("the health of the devices of pod %s is not kept yet: %s", key, error)
            return
        if is_kept and self._left.get(key) is pod:
            del self._left[key]
