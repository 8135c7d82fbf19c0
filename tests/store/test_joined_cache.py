"""A cache whose objects hold what another has beside them: nodes and their GPUs' health."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.node_health import NodeCaches
from stoker.spec.gpu_health import HEALTH, Cordon, GPUNodeHealth, GPUNodeHealthSpec
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES, GPUNode
from stoker.store.clock import SystemClock

A, B = Key("", "a"), Key("", "b")
CORDONED = GPUNodeHealthSpec(cordons=(Cordon(),))


async def _node(store: Any, name: str) -> GPUNode:
    await store.create(NODES, GPUNode(metadata=ObjectMeta(name=name)))
    node: GPUNode = await store.patch_status(NODES, Key("", name), {"ready": True}, manager="agent")
    return node


def _health(name: str, spec: GPUNodeHealthSpec = CORDONED) -> GPUNodeHealth:
    return GPUNodeHealth(metadata=ObjectMeta(name=name), spec=spec)


@pytest.mark.parametrize("first", ["node", "health"])
async def test_an_object_changes_with_either(store, running, first):
    """Whichever of the two is there first."""
    cache = NodeCaches(store, SystemClock()).nodes
    changes = []
    cache.subscribe(lambda change: changes.append((change.old, change.new)))
    if first == "node":
        await _node(store, "a")
    else:
        await store.create(HEALTH, _health("a"))
    async with running(cache):
        assert cache.is_synced and cache.stale_s == 0
        await (store.create(HEALTH, _health("a")) if first == "node" else _node(store, "a"))
        await cache.wait_for(lambda now: A in _closed(now), timeout_s=5)
        there = await store.get(HEALTH, A)
        await store.update(HEALTH, there.model_copy(update={"spec": GPUNodeHealthSpec()}))
        await cache.wait_for(lambda now: A not in _closed(now), timeout_s=5)
        await store.update(HEALTH, (await store.get(HEALTH, A)).model_copy(update={"spec": CORDONED}))
        await cache.wait_for(lambda now: A in _closed(now), timeout_s=5)
        await store.delete(HEALTH, A)
        await cache.wait_for(lambda now: A not in _closed(now) and len(now) == 1, timeout_s=5)
        await store.delete(NODES, A)
        await cache.wait_for(lambda now: not len(now), timeout_s=5)
    assert [(old and old.key, new and new.key) for old, new in (changes[0], changes[-1])] == [(None, A), (A, None)]
    assert all(old == before for (old, _), (_, before) in zip(changes[1:], changes, strict=False)), "no change is lost"


async def test_one_that_only_the_other_holds_is_not_there(store, running):
    cache = NodeCaches(store, SystemClock()).nodes
    await store.create(HEALTH, _health("b"))
    node = await _node(store, "a")
    async with running(cache):
        assert list(cache.values()) == [node] and cache.get(B) is None
        await cache.at_least(node.metadata.resource_version, timeout_s=5)
        with pytest.raises(TimeoutError):
            await cache.wait_for(lambda now: len(now) == 2, timeout_s=0.01)


def _closed(cache: Any) -> set[Key]:
    return {node.key for node in cache.values() if node.status.message == "cordoned"}
