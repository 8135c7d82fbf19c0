"""A small world for the scheduler's tests: the state that objects are fed to, and all that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.decide import Decisions, decide
from stoker.sched.entries import Lane
from stoker.sched.nodes import _COLUMNS
from stoker.sched.occupancy import node_room, queue_usage
from stoker.sched.queue_state import QueueState
from stoker.sched.request import ANY_GPU, WHOLE_GPUS
from stoker.sched.state import SchedulerState
from stoker.sched.waiters import Waiting
from stoker.spec.job import TrainingJob
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.spec.runtime import TrainingRuntime
from stoker.why.reasons import Reasons
from tests.support.sched_objects import GI, T0, at, job, key, node, other, pod, queue, runtime


@dataclass
class World:
    """A state that was fed with these objects."""

    state: SchedulerState = field(default_factory=SchedulerState)

    def feed(self, *objects: Any) -> World:
        for item in objects:
            observe = {
                GPUNode: self.state.observe_node,
                Queue: self.state.observe_queue,
                TrainingJob: self.state.observe_job,
                TrainingRuntime: self.state.observe_runtime,
                OtherPod: self.state.observe_other,
                Pod: self.state.observe_pod,
            }
            observe[type(item)](item)
        return self

    def decide(self, seconds: float = 0, **options: Any) -> Decisions:
        return decide(self.state, at(seconds), **options)

    def starts(self, seconds: float = 0, **options: Any) -> dict[str, list[str]]:
        """Job -> node of each worker."""
        return {
            start.key.name: [placed.node for placed in start.placement]
            for start in self.decide(seconds, **options).starts
        }

    def reasons(self, seconds: float = 0) -> Reasons:
        """Of what a decide at that time left waiting."""
        return Reasons(self.state, at(seconds))

    def codes(self, name: str, seconds: float = 0, **options: Any) -> list[str]:
        self.decide(seconds, **options)
        return [str(blocker.code) for blocker in self.reasons(seconds)[key(name)]]


def fingerprint(state: SchedulerState) -> dict[str, Any]:
    """Everything the state holds, as plain values: a lane, queue or runtime as what it is called, and whether it is
    the state's of that name."""

    def called(one: Any) -> Any:
        if isinstance(one, Lane):
            kind = one.request, one.avoid
            return called(one.queue), kind, one.queue.lanes.get(kind) is one
        if isinstance(one, Waiting):
            return one.order, one.needs, called(one.lane)
        if one is None:
            return None
        return one.name, (state.queues if isinstance(one, QueueState) else state.runtimes.states).get(one.name) is one

    table, waiters = state.nodes, state.lanes.waiters
    views: dict[Any, Any] = {**table.columns, **table.extended, **table.eligible}
    return {
        "slots": dict(table.slots),
        "has parts": table.gpus._has_parts,
        "domains": [dict(one) for one in (table._domains._numbers, table._domains._nodes, table._domains._labels)],
        "names": list(table.names),
        "spare": (list(table._spare), list(table._domains._spare)),
        "objects": dict(table.objects),
        "claims": {name: dict(claims) for name, claims in table.claims.items()},
        "others": {name: dict(others) for name, others in table.others.items()},
        "columns": {
            (wanted, name): getattr(owner, name).tolist()
            for wanted, owner, names in [
                (None, table, (*_COLUMNS, "ready")),
                *((wanted, view, view.arrays) for wanted, view in (*views.items(), *table._domains.views.items())),
            ]
            for name in names
        },
        "users": {wanted: view.users for wanted, view in views.items()},
        "holders": (
            dict(state.foreign_pods.where),
            dict(state.foreign_pods.pods),
            {job: set(pods) for job, pods in state.foreign_pods.of_job.items()},
            {pod: (called(one.queue), *one[1:]) for pod, one in state.deleted_jobs.charges.items()},
            {(called(queue), gpu_type): sums for (queue, gpu_type), sums in state.deleted_jobs._sums.items()},
        ),
        "runtimes": {
            name: (known.runtime, known.needs, set(known.users)) for name, known in state.runtimes.states.items()
        },
        "timers": list(state.lanes.timers),
        "entries": {
            entry.key: (
                *(entry.job, entry.request, entry.pending, entry.wakes_at, entry.assumed),
                *(entry.gpu_type, dict(entry.workers_on)),
                *(called(entry.lane), called(entry.runtime), called(entry.queue)),
            )
            for entry in state.entries.values()
        },
        "queues": {
            name: (
                queue.queue,
                [called(above) for above in queue.path],
                [called(below) for below in queue.children],
                (queue.limit, queue.is_limited, queue.guarantee, queue.weight, queue.lately),
                queue.used,
                {name: (one.limit, one.guarantee, one.used) for name, one in queue.typed.items()},
                set(queue.holding),
                set(queue.holding_gpus),
                {key: state.entries[key] is entry for key, entry in queue.pending.items()},
                (list(queue.filed), queue.preempts_from),
                {kind: (list(lane.jobs), lane.place, called(lane)) for kind, lane in queue.lanes.items()},
            )
            for name, queue in state.queues.items()
        },
        "waiters": (
            {
                kind: {name: [called(one) for one in index] for name, index in queues.items()}
                for kind, queues in waiters.for_nodes.items()
            },
            *(
                {name: [called(one) for one in index] for name, index in queues.items()}
                for queues in (waiters.for_limit, waiters.heads)
            ),
            list(waiters.ages),
        ),
        "changes": (
            set(state.changes.freed_nodes),
            set(state.changes.freed_queues),
            set(state.changes.kept_nodes),
            set(state.changes.kept_queues),
            {called(lane) for lane in state.lanes.untried},
            state.changes.shifted,
        ),
        "preemption": (
            *(dict(state.claims.jobs), dict(state.victims), dict(state.claims.unwritten), set(state.claims.voided)),
            {one.key: (one.claim, one.claim_decided, one.stuck) for one in state.entries.values()},
            state.preempt_at,
            *(
                dict(state.claims.keeps),
                dict(state.elastic.placed),
                {kind: set(keys) for kind, keys in state.elastic.below_most.items()},
                state.elastic.grow_at,
            ),
            *(
                set(state.changes.filled_nodes),
                set(state.changes.filled_queues),
                dict(state.claims.moved),
                dict(state.claims.ready),
                (dict(state.claims.given_up._due), list(state.claims.given_up._times)),
                {at: set(keys) for at, keys in state.claims.given_up._at.items()},
            ),
            {
                (name, request): list(orders)
                for name, kinds in state.claims.of.items()
                for request, orders in kinds.items()
            },
            {
                (name, request): dict(there)
                for name, kinds in state.claims.on.items()
                for request, there in kinds.items()
            },
        ),
        "reserving": (state.reserve_after_s, state.next_reserving_at, state.spent_at),
        "plan": [(one.order, called(one.lane), one.spread) for one in state.plan],
        "costs": (dict(state.costs), dict(state.past_costs), state.counted_at),
        "tree": (
            {name: set(named) for name, named in state.tree._naming.items() if named},
            {name: called(queue) for name, queue in state.tree.guaranteed.items()},
            dict(state.tree.typing),
            state.tree.depth,
        ),
        "journal": (state.journal._open, len(state.journal._log)),
    }


def accounting(state: SchedulerState) -> dict[str, Any]:
    """What is counted where, whatever the history: the same for a state rebuilt from scratch."""
    filters = {wanted for wanted in state.nodes.columns if not wanted.type}.union(WHOLE_GPUS)
    filters |= {ANY_GPU._replace(type=gpu_type) for gpu_type in state.nodes.gpus.types_for(ANY_GPU)}
    return {
        "nodes": {name: node_room(state, name) for name in state.nodes.slots},
        "free": {
            (name, wanted): int(state.nodes.free_for(wanted)[slot])
            for name, slot in state.nodes.slots.items()
            for wanted in filters
        },
        "rest": {
            (name, wanted): int(state.nodes.rest_for(wanted)[slot])
            for name, slot in state.nodes.slots.items()
            for wanted in filters
        },
        "extended": {
            (name, wanted): (int(view.rest[slot]), int(view.free[slot]))
            for name, slot in state.nodes.slots.items()
            for wanted, view in state.nodes.extended.items()
        },
        "open": {
            (name, wanted): bool(view.open[slot])
            for name, slot in state.nodes.slots.items()
            for wanted, view in state.nodes.eligible.items()
        },
        "queues": {name: queue_usage(state, name) for name in state.queues},
        "types": {
            one.name: one.used for queue in state.queues.values() for one in queue.typed.values() if any(one.used)
        },
    }


@pytest.fixture(scope="session")
def sched() -> SimpleNamespace:
    """The builders above, as one namespace: test modules can't import each other."""
    return SimpleNamespace(
        World=World,
        T0=T0,
        GI=GI,
        at=at,
        key=key,
        node=node,
        queue=queue,
        job=job,
        runtime=runtime,
        other=other,
        pod=pod,
        fingerprint=fingerprint,
        accounting=accounting,
    )
