"""This machine as a GPUNode object: registered once, kept current from the inventory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, Gpu, GPUNode, GPUNodeStatus
from stoker.store.port import AlreadyExists, NotFound, Store

MANAGER = "agent"


class NodeObject:
    def __init__(self, store: Store, name: str, cpu_milli: int, memory_bytes: int) -> None:
        self._store = store
        self._key = Key("", name)
        self._cpu_milli = cpu_milli
        self._memory_bytes = memory_bytes
        self._told: dict[str, Any] | None = None

    async def tell(self, gpus: Sequence[Gpu]) -> None:
        """Let the store know; nothing is written when nothing changed. Raises: StoreError."""
        status = GPUNodeStatus(
            ready=True, cpu_milli=self._cpu_milli, memory_bytes=self._memory_bytes, gpus=tuple(gpus)
        ).model_dump(mode="json", by_alias=True)
        if status == self._told:
            return
        try:
            await self._patch(status)
        except NotFound:
            try:
                await self._store.create(NODES, GPUNode(metadata=ObjectMeta(name=self._key.name)))
            except AlreadyExists:
                pass
            await self._patch(status)
        self._told = status

    async def _patch(self, status: dict[str, Any]) -> None:
        await self._store.patch_status(NODES, self._key, status, manager=MANAGER)
