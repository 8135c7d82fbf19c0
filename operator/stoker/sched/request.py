"""What a job asks for, as numbers: the request class that identical jobs share.

Owns Request and GpuFilter. Pure values, made once per observed job. Called by every module of the scheduler.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from stoker.spec.job import TrainingJob
from stoker.spec.job_parts import GpuRequest
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import UNKNOWN_MODEL, capability_number, capability_text
from stoker.spec.quantity import cpu_milli, format_bytes, memory_bytes

from .eligible import BUILT_IN, Needs, NodeFilter

# Few distinct quantities stand in many specs; parsing decimals is what costs.
_cpu_milli = lru_cache(maxsize=4096)(cpu_milli)
_memory_bytes = lru_cache(maxsize=4096)(memory_bytes)


@lru_cache(maxsize=4096)
def _request(*parts: Any) -> Request:
    """Jobs that ask for the same share one object."""
    return Request(*parts)


@lru_cache(maxsize=4096)
def _on(request: Request, gpu_type: str) -> Request:
    return _request(*request._replace(filter=request.filter._replace(type=gpu_type)))


HUGE = 2**48  # more than any node has; a whole gang's sum still fits 64 bits


SEVERAL_RESOURCES = ""
"""Of a pod outside Stoker that asks for GPUs of several kinds: how many of each is among its `extended`."""


class GpuFilter(NamedTuple):
    """Which GPUs will do."""

    models: tuple[str, ...] = ()
    """Lower case, sorted; one must be part of the GPU's name. Empty: any."""
    min_memory: int = 0
    min_capability: int = 0
    """As `capability_number`."""
    type: str = ""
    """As `spec.gpu_types`; empty: any."""
    resource: str = GPU_RESOURCE
    """As a device plug-in calls them, or SEVERAL_RESOURCES."""
    apart: bool = False
    """Of a gang of several processes: no two may get parts of one physical GPU."""
    max_power: int = 0
    """Watts of the enforced limit; 0: any."""

    def matches(self, model: str, memory: int, capability: int = 0, power: int = 0) -> bool:
        """But for the type. `model` in lower case; a `capability` or `power` of 0 is not known: it never suffices."""
        if memory < self.min_memory or capability < self.min_capability:
            return False
        if self.max_power and not 0 < power <= self.max_power:
            return False
        return not self.models or any(name in model for name in self.models)

    def may_match(self, model: str, memory: int, capability: int = 0) -> bool:
        """`matches`, or what the GPU is is not known (yet). Power limits come and go."""
        if model == UNKNOWN_MODEL and not memory:
            return True
        return self.matches(model, memory, capability or self.min_capability, self.max_power)

    def __str__(self) -> str:
        """As it follows the word GPU: 'of type h100 with 80Gi or more', 'of model h100 or a100'."""
        offered = f"offered as {self.resource}" if self.resource != GPU_RESOURCE else ""
        of_type = f"of type {self.type}" if self.type else ""
        models = f"of model {' or '.join(self.models)}" if self.models else ""
        memory = f"with {format_bytes(self.min_memory)} or more" if self.min_memory else ""
        least = capability_text(self.min_capability)
        capability = f"of compute capability {least} or more" if self.min_capability else ""
        power = f"limited to {self.max_power} W or less" if self.max_power else ""
        return " ".join(part for part in (offered, of_type, models, memory, capability, power) if part)


ANY_GPU = GpuFilter()
WHOLE_GPUS = (ANY_GPU, GpuFilter(apart=True))
"""Of requests for which every GPU will do that is offered as one, where none is shared."""


class Near(NamedTuple):
    """How close together a gang is to be. Each is a level of the topology (`topology.py`), or empty."""

    required: str = ""
    """All workers are in one domain of this level."""
    preferred: str = ""
    """They rather are in one of this level, else of the next level outside it, else in as few as can be."""


ANYWHERE = Near()


class Totals(NamedTuple):
    """GPUs, thousandths of a core, bytes."""

    gpus: int
    cpu: int
    memory: int

    def plus(self, other: Totals, times: int = 1) -> Totals:
        return Totals(self.gpus + times * other.gpus, self.cpu + times * other.cpu, self.memory + times * other.memory)


NOTHING = Totals(0, 0, 0)


class Request(NamedTuple):
    """`workers` times (gpus, cpu, memory, extended), on those nodes.

    Units: per worker; cpu in thousandths of a core, memory in bytes.
    """

    workers: int
    gpus: int
    cpu: int
    memory: int
    filter: GpuFilter = ANY_GPU
    nodes: NodeFilter = BUILT_IN.nodes
    extended: tuple[tuple[str, int], ...] = ()
    """Other countable resources (`rdma/hca`), by name."""
    near: Near = ANYWHERE
    up_to: int = 0
    """Of an elastic job without a place: `workers` will do, but it starts with so many if they fit. 0: no more than
    `workers`."""

    def sized(self, workers: int) -> Request:
        """With just so many."""
        return _request(*self._replace(workers=workers, up_to=0))

    def on(self, gpu_type: str) -> Request:
        """The same on GPUs of that type only; empty: as it is."""
        if not gpu_type or not self.gpus or self.filter.type == gpu_type:
            return self
        return _on(self, gpu_type)

    @property
    def one_worker(self) -> Request:
        """Of those that it asks for, wherever it may be."""
        return _request(*self._replace(workers=1, up_to=0, near=ANYWHERE))

    def times(self, workers: int) -> Totals:
        return Totals(workers * self.gpus, workers * self.cpu, workers * self.memory)

    @property
    def totals(self) -> Totals:
        return self.times(self.workers)


_NONE_IN_PARTICULAR = GpuRequest()


def request_of(job: TrainingJob, needs: Needs = BUILT_IN) -> Request:
    """Jobs with equal requests fit, or don't fit, in the same places. Of an elastic job: the least that will do."""
    spec = job.spec
    apart = spec.gpus_per_worker * spec.most_workers > 1
    wanted = WHOLE_GPUS[apart]
    if spec.gpus_per_worker and spec.gpu != _NONE_IN_PARTICULAR:
        models = tuple(sorted({model.lower() for model in spec.gpu.models}))
        least = _memory_bytes(spec.gpu.min_memory) if spec.gpu.min_memory else 0
        able = capability_number(spec.gpu.min_compute_capability)
        power = spec.gpu.max_power or 0
        wanted = GpuFilter(models, least, able, resource=spec.gpu.resource, apart=apart, max_power=power)
    cpu, memory = _cpu_milli(job.cpu), _memory_bytes(job.memory)
    nodes = needs.gpu_nodes if spec.gpus_per_worker else needs.nodes
    near = Near(spec.topology.required or "", spec.topology.preferred or "") if spec.most_workers > 1 else ANYWHERE
    workers = spec.least_workers
    request = (workers, spec.gpus_per_worker, min(cpu, HUGE), min(memory, HUGE), wanted, nodes, needs.extended)
    return _request(*request, near, spec.workers if spec.workers > workers else 0)
