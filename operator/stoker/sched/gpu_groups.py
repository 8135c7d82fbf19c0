"""GPUs of one node that may differ, and which of them a request's filter may count on.

Owns that arithmetic. Called by `nodes`.

The node agent (or the device plugin) picks the GPUs: of what runs we know the filter, not the GPUs. The rule: a request
may count on those matching GPUs that stay free *however* it was picked for those already there. With claims i (filter
S_i, g_i GPUs) the most GPUs of a filter R they can hold is a maximum flow from claims to the types in R; `room` =
matching - that flow. A maximum flow onto R's types always extends to an assignment of all claims (augmenting paths keep
matched GPUs matched), so the bound is reached by some pick: not one GPU is given up needlessly, and no start can meet
a node whose fitting GPUs are gone. On nodes with one type it is simply what is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stoker.spec.gpu_types import UNKNOWN_TYPE, GpuTypes
from stoker.spec.names import GPU_RESOURCE, GPU_RESOURCES
from stoker.spec.node import GPUNode, capability_number

from .request import SEVERAL_RESOURCES, GpuFilter, Request

_EXACT_TYPES = 8  # the flow's minimum cut is searched over 2**types subsets


class GpuGroup(NamedTuple):
    """GPUs of one type on one node."""

    model: str  # lower case
    memory: int
    usable: int
    total: int
    capability: int = 0
    """As `capability_number`."""
    type: str = UNKNOWN_TYPE
    """As `spec.gpu_types`."""
    resource: str = GPU_RESOURCE
    part: bool = False
    """As of `Gpu`."""
    power: int = 0
    """Watts of the enforced limit; 0: not known."""

    def suits(self, wanted: GpuFilter) -> bool:
        return self._is_named(wanted) and wanted.matches(self.model, self.memory, self.capability, self.power)

    def may_suit(self, wanted: GpuFilter) -> bool:
        """It does, or may turn out to."""
        return self._is_named(wanted) and wanted.may_match(self.model, self.memory, self.capability)

    def _is_named(self, wanted: GpuFilter) -> bool:
        return wanted.resource == self.resource and wanted.type in ("", self.type) and not (self.part and wanted.apart)


class Claim(NamedTuple):
    """What one job, or one pod that is not counted by a job, holds on one node."""

    workers: int
    request: Request

    @property
    def gpus(self) -> int:
        return self.workers * self.request.gpus

    @property
    def kinds(self) -> Iterator[tuple[GpuFilter, int]]:
        """(which GPUs, how many of them)."""
        if self.request.filter.resource != SEVERAL_RESOURCES:
            yield self.request.filter, self.gpus
            return
        for name, count in self.request.extended:
            if GPU_RESOURCES.fits(name):
                yield GpuFilter(resource=name), self.workers * count


def group(node: GPUNode, types: GpuTypes) -> tuple[GpuGroup, ...]:
    counts: dict[tuple[str, int, int, str, bool, int], tuple[int, int]] = {}
    for gpu in node.status.gpus:
        able = capability_number(gpu.compute_capability)
        kind = gpu.model.lower(), gpu.memory_bytes, able, gpu.resource, gpu.part, gpu.power_limit_watts
        usable, total = counts.get(kind, (0, 0))
        counts[kind] = usable + (not gpu.unavailable), total + 1
    return tuple(
        GpuGroup(model, memory, usable, total, able, types.offered_as(resource, model), resource, part, power)
        for (model, memory, able, resource, part, power), (usable, total) in sorted(counts.items())
    )


def worst_held(groups: tuple[GpuGroup, ...], claims: Iterable[Claim], wanted: GpuFilter) -> int:
    """The most GPUs matching `wanted` that `claims` may hold on a node with these groups: a flow's minimum cut."""
    types = [group for group in groups if group.suits(wanted)]
    reach: dict[int, int] = {}  # set of types (bits) -> GPUs whose holders may have picked among them
    for own, gpus in (kind for claim in claims for kind in claim.kinds):
        if own.resource != wanted.resource:
            continue
        bits = sum(1 << i for i, group in enumerate(types) if group.suits(own))
        if not bits and not any(group.suits(own) for group in groups):
            bits = (1 << len(types)) - 1  # the node has changed under the job: it may hold anything
        if bits:
            reach[bits] = reach.get(bits, 0) + gpus
    every = (1 << len(types)) - 1
    cuts = range(every + 1) if len(types) <= _EXACT_TYPES else (0, every)
    return min(
        sum(group.usable for i, group in enumerate(types) if cut >> i & 1)
        + sum(gpus for bits, gpus in reach.items() if bits & ~cut)
        for cut in cuts
    )
