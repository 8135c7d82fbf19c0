"""A fork is exact, and goes its own way: whatever happens to one of the two, the other does not see it."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given

from stoker.sched.occupancy import queue_usage
from stoker.sched.state import SchedulerState
from tests.support.examples import examples
from tests.support.sched_histories import History, actions


def forked(world: History) -> History:
    """A history of its own, on a fork of its state."""
    other = copy.copy(world)
    for name in ("nodes", "queues", "jobs", "runtimes", "others", "pods", "starting"):
        setattr(other, name, dict(getattr(world, name)))
    other.state = world.state.fork()
    return other


def held(state: SchedulerState) -> list[Any]:
    """The columns of what may be stopped, which follow from the rest when they are asked for."""
    running = state.running
    running.refresh()
    return [(running.jobs[row].key, running.gpus[row], running.saved_s[row]) for row in running.rows]  # type: ignore[union-attr]


@examples(75, suppress_health_check=[HealthCheck.too_slow])
@given(before=actions, one=actions, two=actions)
def test_neither_sees_the_other_and_both_would_do_the_same(
    before: list[tuple[Any, ...]], one: list[tuple[Any, ...]], two: list[tuple[Any, ...]], sched: SimpleNamespace
) -> None:
    world = History(sched)
    for action in before:
        world.play(action)
    start = sched.fingerprint(world.state)
    first, second = forked(world), forked(world)
    assert sched.fingerprint(first.state) == start
    rebuilt = first.rebuilt()
    accounts, expected = sched.accounting(first.state), sched.accounting(rebuilt)
    assert accounts["nodes"] == expected["nodes"] and accounts["free"] == expected["free"]
    assert all(usage == queue_usage(rebuilt, name) for name, usage in accounts["queues"].items())
    for action in one:
        first.play(action)
    assert sched.fingerprint(world.state) == start and sched.fingerprint(second.state) == start
    there = sched.fingerprint(first.state)
    for action in two:
        world.play(action)
    assert sched.fingerprint(first.state) == there and sched.fingerprint(second.state) == start
    for action in two:
        second.play(action)
    assert second.starting == world.starting
    assert sched.fingerprint(second.state) == sched.fingerprint(world.state)
    assert held(second.state) == held(world.state)


def test_a_fork_made_in_a_what_if_keeps_it(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.queue(), sched.job("x", 3), sched.job("y", 3, queued=1))
    with world.state.what_if():
        assert world.starts(10) == {"x": ["a"]}
        other = sched.World(world.state.fork())
    assert other.starts(10) == {} and other.codes("y", 10) == ["NoCapacity"]
    assert world.starts(10) == {"x": ["a"]}
    world.state.forget_job(sched.key("x"))
    assert world.starts(11) == {"y": ["a"]} and other.starts(11) == {}


def test_jobs_nodes_and_keys_are_shared(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.queue(), sched.job("x", 3), sched.job("w", 8))
    other = world.state.fork()
    for key, entry in world.state.entries.items():
        twin = other.entries[key]
        assert twin is not entry and twin.job is entry.job and twin.request is entry.request
        assert twin.queue is other.queues["default"] is not entry.queue
    assert other.nodes.objects["a"] is world.state.nodes.objects["a"]
    assert other.nodes.free_gpu is not world.state.nodes.free_gpu
