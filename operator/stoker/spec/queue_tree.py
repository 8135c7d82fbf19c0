"""The tree of queues: which parents and guarantees count, and what is wrong with the others.

Pure. Called by `sched.queue_tree` (whose limits hold) and the controller's `queues` (condition Valid).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .quantity import format_bytes, format_cpu
from .queue import NOT_NAMED, Amounts, QueueSpec


class Link(NamedTuple):
    parent: str | None
    """None: a top-level queue, or one whose parent does not count."""
    guarantee: Amounts = NOT_NAMED
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
                found[one] = Link(None, problem=f"its parents form a cycle: {' → '.join((*cycle, cycle[0]))}")
            elif parent is not None and parent not in queues:
                found[one] = Link(None, problem=f"its parent '{parent}' does not exist")
            else:
                found[one] = Link(parent, queues[one].guarantee.amounts)
    _check_guarantees(found)
    return found


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
        for at, has in enumerate(found[parent].guarantee):
            sharing = [(name, found[name].guarantee[at]) for name in children if found[name].guarantee[at]]
            if sum(share or 0 for _, share in sharing) <= (has or 0):
                continue
            chain = " → ".join((*_above(found, parent), parent))
            parts = " + ".join(f"{_amount(at, share or 0)} ({name})" for name, share in sharing)
            problem = f"guarantees come to more than the {_amount(at, has or 0)} of the queue above ({chain}): {parts}"
            for name, _ in sharing:
                found[name] = Link(parent, NOT_NAMED, problem)


def _above(found: Mapping[str, Link], name: str) -> tuple[str, ...]:
    """From the top."""
    parent = found[name].parent
    return () if parent is None else (*_above(found, parent), parent)


def _amount(at: int, count: int) -> str:
    return (f"{count} GPUs", f"{format_cpu(count)} cores", format_bytes(count))[at]
