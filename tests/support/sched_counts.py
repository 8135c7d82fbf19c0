"""What a history's cluster has and holds, counted naively: the model that the scheduler is held against."""

from __future__ import annotations

from collections import Counter

from stoker.spec.job import TrainingJob
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import GPUNode
from stoker.spec.quantity import cpu_milli, memory_bytes
from stoker.spec.runtime import TrainingRuntimeSpec, effective_runtime
from stoker.spec.worker_pod import identity
from tests.support.sched_histories import MIG, History


def runtime_of(history: History, job: TrainingJob) -> TrainingRuntimeSpec | None:
    """None: it has none that takes it."""
    found = history.runtimes.get(effective_runtime(job.spec.runtime, "default", history.runtimes.values()))
    if found is None:
        return None if job.spec.runtime else TrainingRuntimeSpec()
    open_to = found.spec.projects
    return found.spec if open_to is None or job.metadata.namespace in open_to else None


def may_use(node: GPUNode, job: TrainingJob, runtime: TrainingRuntimeSpec) -> bool:
    def tolerated(key: str, value: str) -> bool:
        return (key == "nvidia.com/gpu" and job.spec.gpus_per_worker > 0) or any(
            (one.operator == "Exists" and not one.key) or (one.key == key and one.value == value)
            for one in runtime.tolerations
        )

    return (
        node.status.ready
        and dict(node.metadata.labels) | runtime.node_selector == dict(node.metadata.labels)
        and all(tolerated(t.key, t.value) for t in node.status.taints if t.effect != "PreferNoSchedule")
    )


def used(history: History, name: str) -> Counter[str]:
    """What jobs placed there, pods outside Stoker and strays of ours hold of a node. Units: cores' thousandths."""
    held = Counter[str]()
    counted = set()
    for job in history.placed_jobs():
        for placed in job.status.placement:
            counted.add((job.uid, str(job.status.attempt), str(placed.worker), placed.node))
            if placed.node == name:
                held[job.spec.gpu.resource] += job.spec.gpus_per_worker
                held["cpu"] += job.cpu_milli
                held["memory"] += job.memory_bytes
                named = effective_runtime(job.spec.runtime, "default", history.runtimes.values())
                runtime = history.runtimes.get(named)
                held.update(runtime.spec.extended_resources if runtime else {})
    for pod in (*history.pods.values(), *history.others.values()):
        said, requests = identity(pod.metadata), pod.spec.containers[0].resources
        one = (said.job_uid, str(said.attempt), str(said.worker), pod.spec.node_name) if said else None
        if pod.spec.node_name != name or one in counted:
            continue
        amounts = {**requests.limits, **requests.requests}
        for resource in (GPU_RESOURCE, MIG):
            held[resource] += int(amounts.get(resource, 0))
        held["cpu"] += cpu_milli(amounts.get("cpu", "0"))
        held["memory"] += memory_bytes(amounts.get("memory", "0"))
        held["rdma/hca"] += int(amounts.get("rdma/hca", 0))
    return held


def room(history: History, job: TrainingJob, avoid: frozenset[str]) -> int:
    """Workers that fit now, in the best zone where the gang is to be in one, counted naively. Only for nodes whose GPUs
    of the resource are all alike, and where no more of any is held than there is; -1 where some are not."""
    total, spec, runtime = Counter[str | None](), job.spec, runtime_of(history, job)
    in_one = spec.least_workers > 1 and spec.topology.required == "zone"
    for name, node in history.nodes.items():
        if runtime is None or not may_use(node, job, runtime) or name in avoid:
            continue
        offered = [gpu for gpu in node.status.gpus if gpu.resource == spec.gpu.resource]
        held, gpus = used(history, name), [gpu for gpu in offered if not gpu.unavailable]
        there = Counter(gpu.resource for gpu in node.status.gpus if not gpu.unavailable)
        if len({(gpu.model, gpu.memory_bytes, gpu.power_limit_watts) for gpu in offered}) > 1:
            return -1
        if any(held[resource] > there[resource] for resource in (GPU_RESOURCE, MIG)):
            return -1
        fits = spec.least_workers
        if spec.gpus_per_worker:
            wanted = all(
                (not spec.gpu.models or any(model.lower() in gpu.model.lower() for model in spec.gpu.models))
                and (spec.gpu.min_memory is None or gpu.memory_bytes >= 40 * 2**30)
                and (spec.gpu.max_power is None or 0 < gpu.power_limit_watts <= spec.gpu.max_power)
                for gpu in gpus
            )
            fits = min(fits, (len(gpus) - held[spec.gpu.resource]) // spec.gpus_per_worker if wanted else 0)
        if job.cpu_milli:
            fits = min(fits, (node.status.cpu_milli - held["cpu"]) // job.cpu_milli)
        for resource, count in runtime.extended_resources.items():
            fits = min(fits, (node.status.extended.get(resource, 0) - held[resource]) // count)
        zone = node.metadata.labels.get("zone") if in_one else ""
        total[zone] += max(0, min(fits, (node.status.memory_bytes - held["memory"]) // job.memory_bytes))
    return max((count for zone, count in total.items() if zone is not None), default=0)


def path(world: History, name: str) -> list[str]:
    """The queue and those whose limits hold for it too."""

    def parent(one: str) -> str | None:
        named = world.queues[one].spec.parent
        return named if named in world.queues else None

    found: list[str] = []
    at: str | None = name
    while at is not None:
        found.append(at)
        around, seen = parent(at), set[str]()
        while around is not None and around != at and around not in seen:
            seen.add(around)
            around = parent(around)
        at = None if around == at else parent(at)
    return found


def workers_below(world: History, name: str) -> list[TrainingJob]:
    """The job of each worker of the queue and those below it, pods of deleted jobs included."""
    jobs = [job for job in world.placed_jobs() for _ in job.status.placement]
    jobs += world.left.values()
    return [job for job in jobs if job.spec.queue in world.queues and name in path(world, job.spec.queue)]


def held_below(world: History, name: str) -> tuple[int, int]:
    """GPUs and thousandths of cores."""
    below = workers_below(world, name)
    return sum(job.spec.gpus_per_worker for job in below), sum(job.cpu_milli for job in below)


def held_in_units(world: History, name: str) -> tuple[float, float]:
    """GPUs and cores, as people are shown them."""
    gpus, cpu_milli = held_below(world, name)
    return float(gpus), cpu_milli / 1000


def names_types(world: History) -> bool:
    """Some queue limits or guarantees GPUs by type."""
    return any(queue.spec.limit.of_types for queue in world.queues.values())


def held_of_type(world: History, name: str, gpu_type: str) -> int:
    """GPUs of the queue's jobs and of those below it."""
    return sum(job.spec.gpus_per_worker for job in workers_below(world, name) if job.status.gpu_type == gpu_type)


def total_cores(job: TrainingJob) -> float:
    return job.spec.least_workers * job.cpu_milli / 1000


def holders_below(world: History, name: str, resource: str) -> frozenset[str]:
    """Jobs of a queue and those below it that hold some."""
    below = [
        job for job in world.placed_jobs() if job.spec.queue in world.queues and name in path(world, job.spec.queue)
    ]
    asked = {"gpus": lambda job: job.spec.total_gpus, "cpu": total_cores}[resource]
    return frozenset(str(job.key) for job in below if asked(job))
