"""Keeps other people's pods off nodes that are left out for a sick GPU: a taint of ours, where the chart asks for it.

Level-triggered on what the nodes are: set while the whole node is left out, taken away once it is not. Running pods
stay. Only the leader writes. Called by `main`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from stoker.node_health import is_left_out
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode, Taint
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import NotFound, StoreError

log = logging.getLogger(__name__)

TAINT = Taint(key="stoker.dev/sick-gpu", effect="NoSchedule")
_AGAIN_S = 5.0


class TaintStore(Protocol):
    async def taint_node(self, name: str, taint: Taint, *, there: bool) -> None:
        """Put the taint on the node, or take it off. Raises: StoreError."""
        ...


class NodeTaints:
    def __init__(self, store: TaintStore, nodes: WatchCache[GPUNode], clock: Clock) -> None:
        self._store, self._nodes, self._clock = store, nodes, clock
        self._wrong: set[Key] = set()
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._nodes.subscribe(self._on_node)
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                for key in sorted(self._wrong):
                    await self._correct(key)
                if self._wrong:
                    await self._clock.sleep(_AGAIN_S)
                    self._woken.set()
        finally:
            unsubscribe()

    def _on_node(self, change: Change[GPUNode]) -> None:
        if change.new is None or is_left_out(change.new) == _has_taint(change.new):
            self._wrong.discard(change.key)
        else:
            self._wrong.add(change.key)
            self._woken.set()

    async def _correct(self, key: Key) -> None:
        node = self._nodes.get(key)
        if node is None:
            return
        left_out = is_left_out(node)
        what = f"node {key.name}: taint {TAINT.key} {'set' if left_out else 'removed'}"
        try:
            await self._store.taint_node(key.name, TAINT, there=left_out)
        except StoreError as error:
            log.warning("%s: not yet: %s", what, error)
            if not isinstance(error, NotFound):
                return
        else:
            log.warning("%s", what)
        self._wrong.discard(key)


def _has_taint(node: GPUNode) -> bool:
    return any((taint.key, taint.effect) == (TAINT.key, TAINT.effect) for taint in node.status.taints)
