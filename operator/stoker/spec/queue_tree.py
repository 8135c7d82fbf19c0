"""The tree of queues: which parents and guarantees count, and what is wrong with the others.

Pure. Called by `sched.queue_tree` (whose limits hold), the controller's `queues` (condition Valid) and the api (PUT).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .gpu_types import GpuTypes
from .quantity import format_bytes, format_cpu
from .queue import NO_RESOURCES, QueueResources, QueueSpec

_ALONE = "until that is mended it is a top-level queue without a guarantee"
_KNOWN_BY = "correct the name, or add a model of that type (the chart's gpuTypes, stoker up --gpu-type)"


class Link(NamedTuple):
    parent: str | None
    """None: a top-level queue, or one whose parent does not count."""
    guarantee: QueueResources = NO_RESOURCES
    """That counts."""
    problem: str = ""
    """What is wrong, for people; empty: nothing."""


def links(queues: Mapping[str, QueueSpec]) -> dict[str, Link]:
    """Each queue's place. Whole trees must be given. Cost: O(queues x depth)."""
    found: dict[str, Link] = {}
    for name in sorted(queues):
        chain: list[str] = []
        at: str | None = name
        while at is not None and at in queues and at not in found and at not in chain:
            chain.append(at)
            at = queues[at].parent
        cycle = chain[chain.index(at) :] if at is not None and at in chain else []
        for one in chain:
            parent = queues[one].parent
            if one in cycle:
                found[one] = Link(None, problem=f"its parents form a cycle: {' → '.join((*cycle, cycle[0]))}; {_ALONE}")
            elif parent is not None and parent not in queues:
                found[one] = Link(None, problem=f"its parent '{parent}' does not exist; {_ALONE}")
            else:
                found[one] = Link(parent, queues[one].guarantee)
    _check_guarantees(found)
    return found


def unknown_types(spec: QueueSpec, types: GpuTypes) -> str:
    """Which types it names that no GPU can have, for people; empty: none."""
    named = {*(spec.limit.gpu_types or ()), *(spec.guarantee.gpu_types or ())}
    unknown = [name for name in sorted(named) if not types.knows(name)]
    return f"no GPU can be of type {', '.join(unknown)}; {_KNOWN_BY}" if unknown else ""


def _check_guarantees(found: dict[str, Link]) -> None:
    """From the top down: one that counts for nothing leaves nothing to those below."""
    below: dict[str, list[str]] = {}
    for name, link in found.items():
        if link.parent is not None:
            below.setdefault(link.parent, []).append(name)
    todo = [name for name, link in found.items() if link.parent is None]
    while todo:
        parent = todo.pop()
        children = sorted(below.get(parent, ()))
        todo += children
        amounts = {name: found[name].guarantee.by_resource for name in (parent, *children)}
        for resource in sorted({resource for name in children for resource in amounts[name]}):
            has = amounts[parent].get(resource, 0)
            sharing = [(name, amounts[name][resource]) for name in children if amounts[name].get(resource)]
            if sum(share for _, share in sharing) <= has:
                continue
            chain = " → ".join((*_above(found, parent), parent))
            parts = " + ".join(f"{_amount(resource, share)} ({name})" for name, share in sharing)
            problem = (
                f"guarantees come to more than the {_amount(resource, has)} of the queue above ({chain}): {parts}; "
                "none of these queues has a guarantee until that is mended"
            )
            for name, _ in sharing:
                found[name] = Link(parent, NO_RESOURCES, problem)


def _above(found: Mapping[str, Link], name: str) -> tuple[str, ...]:
    """From the top."""
    parent = found[name].parent
    return () if parent is None else (*_above(found, parent), parent)


def _amount(resource: str, count: int) -> str:
    if resource == "gpus":
        return f"{count} GPUs"
    if resource == "cpu":
        return f"{format_cpu(count)} cores"
    return format_bytes(count) if resource == "memory" else f"{count} {resource} GPUs"
