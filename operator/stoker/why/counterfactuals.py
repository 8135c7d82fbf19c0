"""Counterfactuals: what would start a waiting job. Each is returned only after it was applied and decided on.

Owns which changes are tried. Leaves the state as it was. Called by `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from stoker.sched.decide import decide
from stoker.sched.entries import Entry
from stoker.sched.gpu_choice import choices
from stoker.sched.place import fitting, free_room, place
from stoker.sched.request import ANYWHERE, WHOLE_GPUS, Request, request_of
from stoker.sched.state import SchedulerState
from stoker.sched.worker_size import with_fewer_gpus
from stoker.spec.job import TrainingJob
from stoker.spec.job_parts import GpuRequest, JobTopology
from stoker.spec.quantity import format_cpu
from stoker.spec.queue import Queue
from stoker.spec.reasons import Change, HintCode, Reason, Value

from . import sentences
from .cluster_changes import remedies
from .phrases import OF_TYPE, resources

_QUEUES_TRIED = 20
_QUEUES_NAMED = 3
_CPU_STEP = 100  # thousandths of a core
_MEMORY_STEP = 2**28  # 256 MiB
_LIMITS = {"gpus": Change.LIMIT_GPUS, "cpu": Change.LIMIT_CPU, "memory": Change.LIMIT_MEMORY}


def hints(state: SchedulerState, entry: Entry, now: datetime, reserve_after_s: float) -> tuple[Reason, ...]:
    """Changes that start the job if done, all else equal. To be asked after a decide at `now` has left it waiting."""

    def starts(changes: Mapping[str, Any], at: datetime = now, first: Callable[[], None] | None = None) -> bool:
        job = _changed(entry.job, changes)
        with state.what_if():
            if changes:
                state.observe_job(job)
            if first is not None:
                first()
            return any(start.key == entry.key for start in decide(state, at, reserve_after_s=reserve_after_s).starts)

    def hint(change: Change, value: Value, **parts: Any) -> Reason:
        message = sentences.would_start(change, value, entry.request, queue=parts.get("queue"))
        return Reason(code=HintCode.WOULD_START, message=message, change=change, value=value, **parts)

    found = [hint(change, value) for fields, change, value in _smaller(state, entry, now) if starts(fields)]
    requests = choices(state, entry.queue, entry.request)
    if any(place(state.nodes, one, entry.avoided(now)) is not None for one in requests):
        there = (hint(Change.QUEUE, name) for name in _other_queues(state, entry) if starts({"queue": name}))
        found += islice(there, _QUEUES_NAMED)
        for queue, change, value, changed in _limits(state, entry):
            if starts({}, first=partial(state.observe_queue, changed)):
                found.append(hint(change, value, queue=queue))
    for do, change, names, nodes in remedies(state, entry, now):
        if starts({}, first=do):
            message = sentences.would_start_once(change, names, nodes)
            found.append(Reason(code=HintCode.WOULD_START, message=message, nodes=nodes, change=change, value=names))
    for at, nodes in _times(state, entry, now):
        if starts({}, at):
            message = sentences.would_start_at(nodes, at, now)
            found.append(
                Reason(
                    code=HintCode.WOULD_START,
                    message=message,
                    nodes=nodes,
                    until=at,
                    change=Change.WAIT,
                    value=at.isoformat(),
                )
            )
            break
    return tuple(found)


def _smaller(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[tuple[Mapping[str, Any], Change, Value]]:
    """Changes to the request that find room: as the spec's fields, and as people are shown them. Whether they start the
    job is still to be tried."""
    table, request, avoid = state.nodes, entry.request, entry.avoided(now)

    def fits(changed: Request) -> bool:
        return any(
            entry.queue.has_room(one) and place(table, one, avoid) is not None
            for one in choices(state, entry.queue, changed)
        )

    def asked(**changes: Any) -> Request:
        """One process alone, say, may be anywhere, and have a shared GPU."""
        return request_of(_changed(entry.job, changes), entry.runtime.needs)

    gpus = _largest(request.gpus - 1, lambda value: fits(asked(gpus_per_worker=value)))
    if gpus:
        yield {"gpus_per_worker": gpus}, Change.GPUS_PER_WORKER, gpus
    if request.workers > 1:
        room = int(np.sum(fitting(table, request, avoid, free_room(table, request, None))))
        elastic = entry.job.spec.elastic

        def fewer(workers: int) -> Mapping[str, Any]:
            return {"workers": workers} if elastic is None else {"elastic": elastic.model_copy(update={"min": workers})}

        most = min(max(room, 1), request.workers - 1)
        workers = _largest(most, lambda value: fits(asked(**fewer(value))))
        if workers:
            yield fewer(workers), Change.WORKERS if elastic is None else Change.ELASTIC_MIN, workers
    if request.near.required and fits(request._replace(near=ANYWHERE)):
        near = JobTopology(preferred=request.near.required)
        yield {"topology": near}, Change.TOPOLOGY, {"preferred": request.near.required}
    anything = WHOLE_GPUS[request.filter.apart]
    if request.filter != anything and fits(request._replace(filter=anything)):
        yield {"gpu": GpuRequest()}, Change.GPU, {}
    cpu = _step(_CPU_STEP, request.cpu, lambda value: fits(request._replace(cpu=value)))
    if cpu:
        yield {"cpu": format_cpu(cpu)}, Change.CPU, format_cpu(cpu)
    memory = _step(_MEMORY_STEP, request.memory, lambda value: fits(request._replace(memory=value)))
    if memory:
        less = _as_quantity(memory)
        yield {"memory": less}, Change.MEMORY, less
    if cpu or memory:
        return
    cpu = _step(_CPU_STEP, request.cpu, lambda value: fits(request._replace(cpu=value, memory=_MEMORY_STEP)))
    memory = _step(_MEMORY_STEP, request.memory, lambda value: fits(request._replace(cpu=cpu, memory=value)))
    if cpu and memory:
        both = {"cpu": format_cpu(cpu), "memory": _as_quantity(memory)}
        yield both, Change.SPEC, both


def _as_quantity(memory: int) -> str:
    return f"{memory // 2**20}Mi" if memory % 2**30 else f"{memory // 2**30}Gi"


def _step(step: int, below: int, holds: Callable[[int], bool]) -> int:
    """The largest multiple of `step` under `below` for which `holds`; 0: none."""
    return step * _largest((below - 1) // step, lambda count: holds(count * step))


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest value in 1..most for which `holds`, which is true up to some value and false above; 0: none."""
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _other_queues(state: SchedulerState, entry: Entry) -> list[str]:
    return [
        name
        for name, queue in sorted(state.queues.items())
        if queue is not entry.queue
        and queue.allows(entry.job)
        and any(queue.has_room(one) for one in choices(state, queue, entry.request))
    ][:_QUEUES_TRIED]


def _limits(state: SchedulerState, entry: Entry) -> Iterator[tuple[str, Change, Value, Queue]]:
    """The one limit that is in the way, of the job's queue or one above, raised as far as needed; on GPUs of each type
    where types count."""
    if not entry.admitted:
        return
    found: dict[tuple[str, str], tuple[str, Change, Value, Queue]] = {}
    for request in choices(state, entry.queue, entry.request):
        short = [
            (queue, resource, used + wanted)
            for queue in entry.queue.path
            for account in queue.own(request.filter.type)
            for resource, limit, used, wanted in zip(
                resources(account), account.limit, account.used, request.totals, strict=False
            )
            if limit is not None and wanted and used + wanted > limit
        ]
        if len(short) == 1:
            [(one, resource, needed)] = short
            if one.queue is not None:
                found.setdefault((one.name, resource), (one.name, *_raised(one.queue, resource, needed)))
    yield from found.values()


def _raised(queue: Queue, resource: str, needed: int) -> tuple[Change, Value, Queue]:
    value: Value
    if resource.startswith(OF_TYPE):
        gpu_type = resource.removeprefix(OF_TYPE)
        field, change, value = "gpu_types", Change.LIMIT_GPU_TYPES, {gpu_type: str(needed)}
        raised: Any = {**queue.spec.limit.of_types, gpu_type: needed}
    else:
        amounts: dict[str, int | str] = {
            "gpus": needed,
            "cpu": format_cpu(needed),
            "memory": _as_quantity(_up_to(needed, 2**20)),
        }
        field, change = resource, _LIMITS[resource]
        raised = value = amounts[resource]
    limit = queue.spec.limit.model_copy(update={field: raised})
    return change, value, queue.model_copy(update={"spec": queue.spec.model_copy(update={"limit": limit})})


def _up_to(amount: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-amount // step) * step


def _times(state: SchedulerState, entry: Entry, now: datetime) -> list[tuple[datetime, tuple[str, ...]]]:
    """When something ends by itself: the blame of these nodes, or (none) the back-off."""
    status = entry.job.status
    times: dict[datetime, tuple[str, ...]] = {}
    for one in sorted(status.blamed, key=lambda one: one.node):
        if one.until > now and one.node in state.nodes.slots:
            times[one.until] = (*times.get(one.until, ()), one.node)
    if status.not_before is not None and status.not_before > now:
        times.setdefault(status.not_before, ())
    return sorted(times.items())


def _changed(job: TrainingJob, changes: Mapping[str, Any]) -> TrainingJob:
    status, amounts = job.status, {name: changes[name] for name in ("cpu", "memory") if name in changes}
    if (found := status.resources) is not None:
        if (gpus := changes.get("gpus_per_worker")) is not None:
            found = with_fewer_gpus(found, job.spec.gpus_per_worker, gpus)
        status = status.model_copy(update={"resources": found.model_copy(update=amounts)})
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes), "status": status})
