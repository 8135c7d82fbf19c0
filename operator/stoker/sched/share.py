"""A queue's share of the cluster: by it, queues of one parent take turns where guarantees leave open who goes first.

Owns the rule: dominant resource fairness, over time. The share is the largest part that a queue, with those below it,
holds of any resource of the cluster and has held of it on average of late, divided by its weight. Resources are GPUs,
cores and memory; and where some queue names types of GPUs, those of each type, as there may be few of a type in great
demand among many others.
Source: Ghodsi et al., NSDI 2011; decay as in Slurm's fair share.
Pure. Called by `job_order` and `stoker.why`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .queue_state import QueueState
from .request import Totals
from .state import SchedulerState

_RESOURCES = ("gpus", "cpu", "memory")
_NO_TYPES: Mapping[str, int] = MappingProxyType({})


class Cluster(NamedTuple):
    """What there is."""

    capacity: Totals
    of_types: Mapping[str, int]
    """GPUs by type; empty: types don't count."""

    @classmethod
    def of(cls, state: SchedulerState) -> Cluster:
        return cls(state.nodes.capacity, state.nodes.gpus.of_types if state.tree.typing else _NO_TYPES)


class Share(NamedTuple):
    value: float
    of: str
    """The resource of which it is; GPUs of a type as 'gpus.h100'. Empty: it holds and has held nothing."""


def share_of(queue: QueueState, cluster: Cluster) -> Share:
    """Cost: O(types that the queue's jobs hold or have held)."""
    most, of = 0.0, ""
    for name, held, lately, there in zip(_RESOURCES, queue.used, queue.lately, cluster.capacity, strict=True):
        if there and held + lately > most * there:
            most, of = (held + lately) / there, name
    for name in {**queue.typed, **queue.lately_of} if cluster.of_types else ():
        held_of = queue.typed[name].used.gpus if name in queue.typed else 0
        there, had = cluster.of_types.get(name, 0), held_of + queue.lately_of.get(name, 0.0)
        if there and had > most * there:
            most, of = had / there, f"gpus.{name}"
    return Share(most / queue.weight, of)
