"""Nodes that are left out for a sick GPU keep other people's pods off: a taint on a real API server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from stoker.controller.node_taints import NodeTaints
from stoker.kube.client import Call
from stoker.node_health import NodeCaches
from stoker.spec.gpu_health import HEALTH, Cleared, GPUNodeHealth, GPUNodeHealthSpec
from stoker.spec.meta import Key, ObjectMeta
from stoker.store.clock import SystemClock

OURS = {"key": "stoker.dev/sick-gpu", "effect": "NoSchedule"}
THEIRS = {"key": "dedicated", "value": "infra", "effect": "NoSchedule"}


async def _taints(world: Any, node: str) -> list[dict[str, Any]]:
    raw = await world.client.request(Call("get", "Node", node), "GET", f"/api/v1/nodes/{node}")
    found = json.loads(raw)["spec"].get("taints") or []
    return [{name: one[name] for name in one if name != "timeAdded"} for one in found]


async def test_a_taint_comes_and_goes_with_the_node_being_left_out_and_no_other_is_touched(world: Any) -> None:
    name = await world.node("n1", gpus=2)
    await world._patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [THEIRS]}})
    made = await world.store.create(HEALTH, GPUNodeHealth(metadata=ObjectMeta(name=name)))
    caches = NodeCaches(world.store, SystemClock())
    running = [
        asyncio.create_task(caches.nodes.run()),
        asyncio.create_task(NodeTaints(world.store, caches.nodes, SystemClock()).run()),
    ]

    async def until(expected: list[dict[str, Any]]) -> None:
        async with asyncio.timeout(20):
            while await _taints(world, name) != expected:
                await asyncio.sleep(0.05)

    try:
        cause = {"code": "OffTheBus", "since": "2026-11-24T10:00:00Z", "message": "XID 79"}
        gpus = [{"uuid": "GPU-0", "causes": [cause]}, {"uuid": "GPU-1", "index": 1}]
        await world.store.patch_status(HEALTH, made.key, {"gpus": gpus}, manager="api")
        await until([THEIRS, OURS])
        there = await world.store.get(HEALTH, Key("", name))
        spec = GPUNodeHealthSpec(cleared=(Cleared(gpu="GPU-0", at=SystemClock().now()),))
        await world.store.update(HEALTH, there.model_copy(update={"spec": spec}))
        await until([THEIRS])
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await world.store.delete(HEALTH, made.key)
