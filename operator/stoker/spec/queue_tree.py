"""The tree of queues: which parents count, and what is wrong with the others.

Pure. Called by `sched.queue_tree` (whose limits hold) and the controller's `queues` (condition Valid).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .queue import QueueSpec


class Link(NamedTuple):
    parent: str | None
    """None: a top-level queue, or one whose parent does not count."""
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
                found[one] = Link(None, f"its parents form a cycle: {' → '.join((*cycle, cycle[0]))}")
            elif parent is not None and parent not in queues:
                found[one] = Link(None, f"its parent '{parent}' does not exist")
            else:
                found[one] = Link(parent)
    return found
