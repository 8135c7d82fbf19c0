"""Elastic jobs: with how many workers they start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.occupancy import queue_usage
from tests.support.examples import examples
from tests.support.preempting import preempting, run, wrote


@pytest.mark.parametrize(
    ("rule", "free", "limit", "workers"),
    [
        ("as many as are wished for, though more would be in order", 8, None, 6),
        ("fewer, where the nodes have room for no more", 4, None, 4),
        ("fewer, where the queue's limit allows no more", 8, 3, 3),
        ("not fewer than the least", 1, None, 0),
        ("nor where the limit asks for it", 8, 1, 0),
    ],
)
def test_an_elastic_job_starts_with(
    sched: SimpleNamespace, rule: str, free: int, limit: int | None, workers: int
) -> None:
    world = sched.World().feed(
        sched.queue(gpus=limit), sched.node("a", free), sched.job("x", workers=6, elastic=(2, 8))
    )
    starts = world.decide(0).starts
    assert sum(len(start.placement) for start in starts) == workers, rule
    assert queue_usage(world.state, "default").gpus == workers
    assert world.decide(0).starts == (), "a second look starts nothing"


def test_it_waits_no_longer_than_until_the_least_fits(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 4), sched.job("u", 3, on=["a"]))
    world.feed(sched.job("x", workers=4, elastic=(2, 4)))
    assert world.decide(0).starts == ()
    world.feed(sched.job("u", 2, on=["a"], version=2))
    assert [len(start.placement) for start in world.decide(0).starts] == [2]


def test_a_start_that_was_not_written_leaves_the_wish_as_it_was(sched: SimpleNamespace) -> None:
    x = sched.job("x", workers=4, elastic=(1, 4))
    world = sched.World().feed(sched.queue(), sched.node("a", 2), x)
    (start,) = world.decide(0).starts
    world.state.drop_assumption(start.key)
    world.feed(sched.node("b", 2))
    assert [len(start.placement) for start in world.decide(0).starts] == [4]


def test_others_are_preempted_for_no_more_than_the_least(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 4))
    world.feed(*(run(sched, name, "a", since=50) for name in "tuvw"))
    x = sched.job("x", workers=4, elastic=(2, 4), priority=1)
    (change,) = world.feed(x).decide(100).claims
    assert (len(change.claim.placement), len(change.claim.victims)) == (2, 2)
    world.feed(wrote(x, claim=change.claim))
    assert world.decide(100).claims == ()
    for name in "tuvw":
        world.state.forget_job(sched.key(name))
    (start,) = world.decide(101).starts
    assert len(start.placement) == 2


@given(
    rooms=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    gpus=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3).map(sorted),
    limit=st.none() | st.integers(0, 20),
)
@examples(60)
def test_the_most_that_fit_and_never_out_of_bounds(
    sched: SimpleNamespace, rooms: list[int], gpus: int, sizes: list[int], limit: int | None
) -> None:
    least, wish, most = sizes
    world = sched.World().feed(sched.queue(gpus=limit), *(sched.node(f"n{i}", room) for i, room in enumerate(rooms)))
    world.feed(sched.job("x", gpus, workers=wish, elastic=(least, most)))
    fit = min(wish, sum(room // gpus for room in rooms), wish if limit is None else limit // gpus)
    before = world.state.checkpoint()
    started = [len(start.placement) for start in world.decide(0).starts]
    assert started == ([fit] if fit >= least else [])
    world.state.rollback(before)
    assert queue_usage(world.state, "default").gpus == 0
