"""Nodes as they are to be used: with what is known of their GPUs' health, and what an administrator has closed.

Owns what a GPUNodeHealth means for its node. On one machine a GPU is known by its uuid, and is left out alone. On a
cluster the device plug-in picks the GPUs: unless it has itself taken as many away as are sick, the whole node is left
out. Operator, api and `stoker up` follow nodes through this.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from stoker.spec.gpu_health import HEALTH, GpuCause, GPUNodeHealth, SickCause
from stoker.spec.names import BURN_IN, GPU_RESOURCE
from stoker.spec.node import CORDONED, NODES, Gpu, GPUNode
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.joined_cache import JoinedCache
from stoker.store.port import Store

_PLUGIN_SEES = frozenset(
    {
        SickCause.OFF_THE_BUS,
        SickCause.LOST,
        SickCause.UNCONTAINED_ERROR,
        SickCause.CONTAINED_ERROR,
        SickCause.DEVICE_UNHEALTHY,
    }
)
"""What NVIDIA's device plug-in takes GPUs away for too. Source: k8s-device-plugin, internal/rm/health.go."""


class NodeCaches:
    """`nodes`: to be used instead of a watch cache of nodes. `plain`, `health`: what is joined in it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.plain = WatchCache(store, NODES, clock=clock)
        self.health = WatchCache(store, HEALTH, clock=clock)
        self.nodes = JoinedCache(self.plain, self.health, joined)


def joined(node: GPUNode, health: GPUNodeHealth | None) -> GPUNode:
    """The node as it may be used."""
    if health is None:
        return node
    status = node.status
    sick = tuple(gpu.model_copy(update={"causes": causes}) for gpu, causes in health.sick())
    update: dict[str, object] = {
        "gpus": gpus_with_health(status.gpus, health),
        "sick": sick,
        "blamed": tuple(health.blamed()),
    }
    if health.cordon is not None and status.ready:
        update |= {"ready": False, "message": CORDONED}
    return node.model_copy(update={"status": status.model_copy(update=update)})


def is_left_out(node: GPUNode) -> bool:
    """No job may go there, for what is wrong with its GPUs."""
    return bool(node.status.sick and node.status.gpus) and all(gpu.unavailable for gpu in node.status.gpus)


def sick_message(causes: Collection[GpuCause]) -> str:
    """What is wrong with it, for people."""
    first = min(causes, key=lambda cause: cause.since)
    what = ", ".join(cause.message or cause.code for cause in causes)
    ends = [cause.ends for cause in causes if cause.ends is not None]
    over = f", over at {max(ends):%Y-%m-%d %H:%M}Z" if len(ends) == len(causes) else ""  # a burn-in is to come
    return f"sick: {what} since {first.since:%Y-%m-%d %H:%M}Z{over}"


def gpus_with_health(gpus: tuple[Gpu, ...], health: GPUNodeHealth | None) -> tuple[Gpu, ...]:
    """`unavailable` where a GPU is sick or cordoned, `blamed` where it held back a gang; its power limit."""
    if health is None:
        return gpus
    why = {gpu.uuid: sick_message(causes) for gpu, causes in health.sick()}
    for one in health.spec.cordons:
        if one.by == BURN_IN:
            why[one.gpu] = "; ".join(filter(None, (why.get(one.gpu), one.reason)))
        elif one.gpu:
            why.setdefault(one.gpu, CORDONED)
    if all(gpu.uuid for gpu in gpus):
        blamed = {gpu.uuid for gpu in health.blamed()}
        limit_of = {gpu.uuid: gpu.power_limit_watts for gpu in health.status.gpus}
        return tuple(
            _with(gpu, why.get(gpu.uuid, ""), limit_of.get(gpu.uuid), blamed=gpu.uuid in blamed) for gpu in gpus
        )
    # Which is which is not known: a limit counts if all of them have it.
    limits = [gpu.power_limit_watts for gpu in health.status.gpus]
    limit = max((watts for watts in limits if watts is not None), default=None) if None not in limits else None
    left_out = "" if not why or _are_taken_away(gpus, health) else _whole_node(health, why)
    return tuple(_with(gpu, left_out, limit) for gpu in gpus)


def _are_taken_away(gpus: Sequence[Gpu], health: GPUNodeHealth) -> bool:
    """The device plug-in offers no more GPUs than are healthy, and for what is wrong it takes them away itself."""
    sick = list(health.sick())
    named = {gpu.uuid for gpu, _ in sick} | {""}
    if any(one.gpu not in named for one in health.spec.cordons):
        return False
    if any(gpu.part or gpu.resource != GPU_RESOURCE for gpu in gpus):
        return False
    offered = sum(not gpu.unavailable for gpu in gpus)
    return offered <= len(health.status.gpus) - len(sick) and all(
        any(cause.code in _PLUGIN_SEES for cause in causes) for _, causes in sick
    )


def _whole_node(health: GPUNodeHealth, why: dict[str, str]) -> str:
    numbers = {gpu.uuid: gpu.index for gpu in health.status.gpus}
    first = min(why, key=lambda uuid: (numbers.get(uuid, 0), uuid))
    named = f"GPU {numbers[first]}" if first in numbers else first
    if len(why) == 1:
        return f"{named} of its node is {why[first]}"
    return f"{len(why)} GPUs of its node are out of use, the first ({named}) is {why[first]}"


@lru_cache(maxsize=4096)
def _with(gpu: Gpu, unavailable: str, power_limit_watts: int | None, *, blamed: bool = False) -> Gpu:
    """Nodes of one kind go on sharing their GPUs (`kube.nodes`)."""
    update = {"power_limit_watts": power_limit_watts or 0, "blamed": blamed}
    return gpu.model_copy(update={"unavailable": gpu.unavailable or unavailable, **update})
