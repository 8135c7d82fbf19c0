"""A job of which no status can be written that says that it stops, or has ended: its pods say what it holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.occupancy import queue_usage
from stoker.spec.job import Phase
from tests.support.preempting import claims, preempting, run, wrote


def claimed(sched: SimpleNamespace) -> tuple[Any, Any]:
    """`low` is a gang of 2 on a node of 2 GPUs, all that its queue may hold, and stopped for `high`."""
    low = run(sched, "low", "a", "a", version=1)
    world = sched.World().feed(sched.node("a", 2), preempting(sched.queue(gpus=2)), low)
    world.feed(*(sched.pod(low, worker, on="a") for worker in (0, 1)), sched.job("high", 2, priority=1))
    assert claims(world.decide(100)) == {"high": ["low"]}
    return world, low


@pytest.mark.parametrize("newer", [False, True])
def test_its_claimant_starts_once_its_pods_are_gone(newer: bool, sched: SimpleNamespace) -> None:
    world, low = claimed(sched)
    world.state.count_by_pods(low)
    if newer:  # its owner goes on to change it
        world.feed(wrote(low, 2), wrote(low, 3))
    world.feed(sched.job("small", 1))
    assert (claims(world.decide(101)), world.starts(101)) == ({}, {}), "the claim stands, and the room is not there"
    assert queue_usage(world.state, "default").gpus == 2, "what its pods hold; claims don't count"
    world.feed(sched.pod(low, 0, on="a", ended=True))
    assert world.starts(102) == {}
    world.feed(sched.pod(low, 1, on="a", ended=True))
    assert world.starts(103) == {"high": ["a"]}
    assert queue_usage(world.state, "default").gpus == 2


def test_as_its_next_attempt_starts_it_is_counted_as_any_other(sched: SimpleNamespace) -> None:
    low = run(sched, "low", "a", "a", version=1)
    world = sched.World().feed(sched.node("a", 2), sched.queue(), low)
    world.state.count_by_pods(low)
    assert world.feed(sched.job("x", 2)).starts() == {"x": ["a"]}, "it has no pods any more"
    world.state.drop_assumption(sched.key("x"))
    world.state.forget_job(sched.key("x"))
    world.feed(wrote(low, 2, phase=Phase.QUEUED, placement=(), gpu_type=""), wrote(low, 3, attempt=2))
    assert world.feed(sched.job("x", 2)).starts() == {}


def test_another_attempt_is_left_alone(sched: SimpleNamespace) -> None:
    first = run(sched, "low", "a", "a", version=1)
    world = sched.World().feed(sched.node("a", 2), sched.queue(), wrote(first, 2, attempt=2))
    world.state.count_by_pods(first)
    assert world.feed(sched.job("x", 1)).starts() == {}
