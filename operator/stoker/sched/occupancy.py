"""What queues and nodes hold and have free, as numbers for people.

Reads a `SchedulerState`, changes nothing. Called by the api and by tests.
"""

from __future__ import annotations

from operator import sub
from typing import NamedTuple

from stoker.spec.meta import Key
from stoker.spec.rest import QueueUsage
from stoker.spec.rest_nodes import NodeUsage

from .queue_state import QueueState
from .request import NOTHING
from .state import SchedulerState


class NodeRoom(NamedTuple):
    """What a node has and has free, claims aside. Free is negative on a node that shrank under its jobs.

    Units: GPUs, thousandths of a core, bytes.
    """

    ready: bool
    gpus: int
    """Usable ones."""
    free_gpus: int
    cpu_milli: int
    free_cpu_milli: int
    memory_bytes: int
    free_memory_bytes: int
    jobs: tuple[Key, ...]
    others: tuple[Key, ...]
    """Pods that hold room there besides the jobs."""


def queue_usage(state: SchedulerState, name: str) -> QueueUsage:
    """What its jobs and those of queues below hold, assumed starts included, claims not; without `held_gpus`.

    Zeros for an unknown queue.
    """
    queue = state.queues.get(name) or QueueState(name)
    subtree = list(queue.subtree())
    waiting = [key for one in subtree for key in one.holding if key in state.claims.jobs]
    growing = [key for key in state.elastic.placed if state.entries[key].queue in subtree]
    kept = (state.entries[key] for key in (*waiting, *growing))
    claims = [one.request.times(sum(one.kept.values())) for one in kept]
    gpus, cpu_milli, memory_bytes = map(int, map(sub, queue.used, map(sum, zip(NOTHING, *claims, strict=True))))
    return QueueUsage(
        gpus=gpus,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        running=sum(len(one.holding) for one in subtree) - len(waiting),
        pending=sum(len(one.pending) for one in subtree),
    )


def node_usage(state: SchedulerState, name: str) -> NodeUsage:
    """What jobs and other pods hold of the node. Raises: KeyError if the node is not known."""
    room = node_room(state, name)
    return NodeUsage(
        gpus=room.gpus - room.free_gpus,
        cpu_milli=room.cpu_milli - room.free_cpu_milli,
        memory_bytes=room.memory_bytes - room.free_memory_bytes,
    )


def node_room(state: SchedulerState, name: str) -> NodeRoom:
    """Raises: KeyError if the node is not known."""
    table, slot = state.nodes, state.nodes.slots[name]
    held = table.claims.get(name, {})
    claims = [claim.request.times(state.entries[key].kept.get(name, 0)) for key, claim in held.items()]
    gpus, cpu, memory = map(sum, zip(NOTHING, *claims, strict=True))
    return NodeRoom(
        ready=bool(table.ready[slot]),
        gpus=int(table.usable[slot]),
        free_gpus=int(table.free_gpu[slot]) + gpus,
        cpu_milli=int(table.cap_cpu[slot]),
        free_cpu_milli=int(table.free_cpu[slot]) + cpu,
        memory_bytes=int(table.cap_mem[slot]),
        free_memory_bytes=int(table.free_mem[slot]) + memory,
        jobs=tuple(sorted(key for key in held if key not in state.claims.jobs)),
        others=tuple(sorted(holder.key for holder in table.others.get(name, ()))),
    )
