"""What each worker of a job gets of cores and memory where the job does not say both.

Owns the rule. For cores and memory each: what the job says; else its queue; else its runtime; else, of a worker with
GPUs, the smallest share that a GPU has of a node whose GPUs would do, less a tenth, which is left to the node's own
pods. Pure. Called by `stoker.worker_sizes`, for operator and api alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stoker.spec.gpu_types import SHIPPED
from stoker.spec.job import TrainingJob
from stoker.spec.node import GPUNode
from stoker.spec.quantity import cpu_milli, exact_bytes, exact_cpu, memory_bytes
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime
from stoker.spec.worker_size import LEAST_CPU, LEAST_MEMORY, SizeFrom, WorkerResources, WorkerSize

from .gpu_groups import group
from .request import Request

_LEFT_TO_WORKERS = 0.9
_WHOLE_GI_FROM = 8 * 2**30


class Share(NamedTuple):
    """What comes with one GPU. Units: thousandths of a core, bytes."""

    cpu: float
    memory: float


def smallest_share(nodes: Iterable[GPUNode], request: Request) -> Share | None:
    """Of all nodes where the GPUs of one worker would do, ready and free or not: the least of cores, and the least of
    memory. None: there is no such node. Cost: O(nodes)."""
    found = [
        Share(node.status.cpu_milli / len(node.status.gpus), node.status.memory_bytes / len(node.status.gpus))
        for node in nodes
        if would_do(node, request)
    ]
    return Share(min(one.cpu for one in found), min(one.memory for one in found)) if found else None


def would_do(node: GPUNode, request: Request) -> bool:
    """It has the GPUs for a worker, and lets it in."""
    status = node.status
    if len(status.gpus) < request.gpus or not (status.cpu_milli and status.memory_bytes):
        return False
    suiting = sum(one.total for one in group(node, SHIPPED) if one.suits(request.filter))
    return suiting >= request.gpus and request.nodes.admits(node)


def resources_of(
    job: TrainingJob, queue: Queue | None, runtime: TrainingRuntime | None, share: Callable[[], Share | None]
) -> WorkerResources | None:
    """`share`: the smallest; it is asked for only where it counts. None: it would count, and there is none."""

    def amounts() -> Iterator[tuple[SizeFrom, WorkerSize]]:
        return _amounts(job, queue, runtime, share)

    cpu = next(((one.cpu, source) for source, one in amounts() if one.cpu is not None), None)
    memory = next(((one.memory, source) for source, one in amounts() if one.memory is not None), None)
    if cpu is None or memory is None:
        return None
    shared = job.spec.shared_memory or (runtime.spec.shared_memory if runtime is not None else None)
    return WorkerResources(
        cpu=cpu[0],
        cpu_from=cpu[1],
        memory=memory[0],
        memory_from=memory[1],
        shared_memory=shared or exact_bytes(memory_bytes(memory[0]) // 2),
    )


def _amounts(
    job: TrainingJob, queue: Queue | None, runtime: TrainingRuntime | None, share: Callable[[], Share | None]
) -> Iterator[tuple[SizeFrom, WorkerSize]]:
    """What a worker may get, the first that is given counts."""
    gpus = job.spec.gpus_per_worker
    yield SizeFrom.JOB, WorkerSize.model_construct(cpu=job.spec.cpu, memory=job.spec.memory)
    for source, object_ in ((SizeFrom.QUEUE, queue), (SizeFrom.RUNTIME, runtime)):
        if object_ is not None:
            defaults = object_.spec.defaults
            yield source, _times(gpus, defaults.per_gpu) if gpus else defaults.without_gpus
    if not gpus:
        yield SizeFrom.DEFAULT, WorkerSize.model_construct(cpu=LEAST_CPU, memory=LEAST_MEMORY)
    elif (one := share()) is not None:
        yield SizeFrom.GPU_SHARE, _of_share(gpus, one)


def _times(gpus: int, one: WorkerSize) -> WorkerSize:
    return WorkerSize.model_construct(
        cpu=None if one.cpu is None else exact_cpu(gpus * cpu_milli(one.cpu)),
        memory=None if one.memory is None else exact_bytes(gpus * memory_bytes(one.memory)),
    )


def _of_share(gpus: int, share: Share) -> WorkerSize:
    """Rounded down: to whole cores, below one to tenths; to whole Gi, below 8 to 64Mi."""
    cpu, memory = int(_LEFT_TO_WORKERS * gpus * share.cpu), int(_LEFT_TO_WORKERS * gpus * share.memory)
    return WorkerSize.model_construct(
        cpu=exact_cpu(_down(cpu, _cpu_step(cpu))), memory=exact_bytes(_down(memory, _memory_step(memory)))
    )


def with_fewer_gpus(found: WorkerResources, gpus: int, fewer: int) -> WorkerResources:
    """What a worker with `fewer` GPUs would get at most, by what one with `gpus` got: it may be rounded down."""
    cpu, memory = cpu_milli(found.cpu), memory_bytes(found.memory)
    changes = {}
    if found.cpu_from is not SizeFrom.JOB:
        changes["cpu"] = exact_cpu(min(cpu, (cpu + _cpu_step(cpu)) * fewer // gpus))
    if found.memory_from is not SizeFrom.JOB:
        changes["memory"] = exact_bytes(min(memory, (memory + _memory_step(memory)) * fewer // gpus))
    return found.model_copy(update=changes)


def _cpu_step(cpu: int) -> int:
    return 1000 if cpu >= 1000 else 100


def _memory_step(memory: int) -> int:
    return 2**30 if memory >= _WHOLE_GI_FROM else 2**26


def _down(amount: int, step: int) -> int:
    return max(amount // step, 1) * step
