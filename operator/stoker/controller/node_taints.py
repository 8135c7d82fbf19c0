"""Keeps other people's pods off nodes that are left out for a sick GPU: a taint of ours, where the chart asks for it.

Level-triggered on what the nodes are: set while the whole node is left out, taken away once it is not. Running pods
stay. Only the leader writes. Called by `main`.
"""

from __future__ import annotations

import logging
from typing import Protocol

from stoker.node_health import is_left_out
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode, Taint
from stoker.store.backlog import Backlog
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import Clock
from stoker.store.port import NotFound, StoreError

log = logging.getLogger(__name__)

TAINT = Taint(key="stoker.dev/sick-gpu", effect="NoSchedule")


class TaintStore(Protocol):
    async def taint_node(self, name: str, taint: Taint, *, there: bool) -> None:
        """Put the taint on the node, or take it off. Raises: StoreError."""
        ...


class NodeTaints:
    def __init__(self, store: TaintStore, nodes: WatchCache[GPUNode], clock: Clock) -> None:
        self._store, self._nodes = store, nodes
        self._wrong: Backlog[Key, Key] = Backlog(clock)

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._nodes.subscribe(self._on_node)
        try:
            await self._wrong.run(self._correct)
        finally:
            unsubscribe()

    def _on_node(self, change: Change[GPUNode]) -> None:
        if change.new is None or is_left_out(change.new) == _has_taint(change.new):
            self._wrong.drop(change.key)
        else:
            self._wrong.put(change.key, change.key)

    async def _correct(self, key: Key) -> bool:
        node = self._nodes.get(key)
        if node is None:
            return True
        left_out = is_left_out(node)
        what = f"node {key.name}: taint {TAINT.key} {'set' if left_out else 'removed'}"
        try:
            await self._store.taint_node(key.name, TAINT, there=left_out)
        except StoreError as error:
            log.warning("%s: not yet: %s", what, error)
            return isinstance(error, NotFound)
        log.warning("%s", what)
        return True


def _has_taint(node: GPUNode) -> bool:
    return any((taint.key, taint.effect) == (TAINT.key, TAINT.effect) for taint in node.status.taints)
