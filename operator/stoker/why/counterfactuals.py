"""Counterfactuals: what would start a waiting job. Each is returned only after it was applied and decided on.

Owns which changes are tried. Leaves the state as it was. Called by `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import numpy as np

from stoker.sched.decide import decide
from stoker.sched.entries import Entry
from stoker.sched.place import fitting, free_room, place
from stoker.sched.request import ANY_GPU, ANYWHERE, Request
from stoker.sched.state import SchedulerState
from stoker.spec.job import TrainingJob
from stoker.spec.job_parts import GpuRequest, JobTopology
from stoker.spec.quantity import format_bytes, format_cpu, format_duration

from .cluster_changes import remedies
from .phrases import clock

_QUEUES_TRIED = 20
_CPU_STEP = 100  # thousandths of a core
_MEMORY_STEP = 2**28  # 256 MiB


def hints(state: SchedulerState, entry: Entry, now: datetime, reserve_after_s: float) -> tuple[str, ...]:
    """Sentences that hold if done, all else equal. To be asked after a decide at `now` has left the job waiting."""

    def starts(changes: dict[str, Any], at: datetime = now, first: Callable[[], None] | None = None) -> bool:
        job = _changed(entry.job, changes)
        with state.what_if():
            if changes:
                state.observe_job(job)
            if first is not None:
                first()
            return any(start.key == entry.key for start in decide(state, at, reserve_after_s=reserve_after_s).starts)

    found = [f"with {what} it would start now" for changes, what in _smaller(state, entry, now) if starts(changes)]
    found += [
        f"in queue '{name}' it would start now" for name in _other_queues(state, entry) if starts({"queue": name})
    ]
    found += [f"once {what} it would start now" for do, what in remedies(state, entry, now) if starts({}, first=do)]
    found += [
        f"once {what} at {clock(at)} (in {format_duration((at - now).total_seconds())}) it would start, "
        "if nothing else changes"
        for at, what in _times(entry, now)
        if starts({}, at)
    ][:1]
    return tuple(found)


def _smaller(state: SchedulerState, entry: Entry, now: datetime) -> Iterator[tuple[dict[str, Any], str]]:
    """Changes to the request that find room; whether they start the job is still to be tried."""
    table, request, avoid = state.nodes, entry.request, entry.avoided(now)

    def fits(changed: Request) -> bool:
        return entry.queue.has_room(changed.totals) and place(table, changed, avoid) is not None

    gpus = _largest(request.gpus - 1, lambda value: fits(request._replace(gpus=value)))
    if gpus:
        yield {"gpus_per_worker": gpus}, f"gpusPerWorker: {gpus} instead of {request.gpus}"
    if request.workers > 1:
        room = int(np.sum(fitting(table, request, avoid, free_room(table, request, None))))
        workers = _largest(min(room, request.workers - 1), lambda value: fits(request._replace(workers=value)))
        if workers:
            yield {"workers": workers}, f"workers: {workers} instead of {request.workers}"
    if request.near.required and fits(request._replace(near=ANYWHERE)):
        near = JobTopology(preferred=request.near.required)
        yield {"topology": near}, "topology.preferred instead of topology.required"
    if request.filter != ANY_GPU and fits(request._replace(filter=ANY_GPU)):
        yield {"gpu": GpuRequest()}, "any GPU (nothing in gpu)"
    cpu = _step(_CPU_STEP, request.cpu, lambda value: fits(request._replace(cpu=value)))
    if cpu:
        yield {"cpu": format_cpu(cpu)}, f"cpu: {format_cpu(cpu)} instead of {format_cpu(request.cpu)}"
    memory = _step(_MEMORY_STEP, request.memory, lambda value: fits(request._replace(memory=value)))
    if memory:
        less = _as_quantity(memory)
        yield {"memory": less}, f"memory: {less} instead of {format_bytes(request.memory)}"
    if cpu or memory:
        return
    cpu = _step(_CPU_STEP, request.cpu, lambda value: fits(request._replace(cpu=value, memory=_MEMORY_STEP)))
    memory = _step(_MEMORY_STEP, request.memory, lambda value: fits(request._replace(cpu=cpu, memory=value)))
    if cpu and memory:
        less = _as_quantity(memory)
        yield {"cpu": format_cpu(cpu), "memory": less}, f"cpu: {format_cpu(cpu)} and memory: {less}"


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
        if queue is not entry.queue and queue.allows(entry.job) and queue.has_room(entry.request.totals)
    ][:_QUEUES_TRIED]


def _times(entry: Entry, now: datetime) -> list[tuple[datetime, str]]:
    status = entry.job.status
    times = [(blame.until, f"{blame.node} is no longer avoided") for blame in status.blamed if blame.until > now]
    if status.not_before is not None and status.not_before > now:
        times.append((status.not_before, "the back-off ends"))
    return sorted(times)


def _changed(job: TrainingJob, changes: dict[str, Any]) -> TrainingJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})
