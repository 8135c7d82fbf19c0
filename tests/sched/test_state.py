"""The state's bookkeeping: assumptions, usage, sorted lanes, GPUs that differ, and that no one starves."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sched.gpu_groups import Claim, GpuGroup, worst_held
from stoker.sched.occupancy import node_room, queue_usage
from stoker.sched.request import GpuFilter, Request
from stoker.sched.sorted_list import SortedList
from stoker.sched.waiters import LaneIndex, Waiting
from stoker.spec.job import Phase
from stoker.spec.rest import QueueUsage
from tests.support.examples import examples


def test_an_assumed_start_is_not_decided_twice(sched: SimpleNamespace) -> None:
    waiting = sched.job("x", 2, version=5)
    world = sched.World().feed(sched.node("a", 2), sched.queue(), waiting)
    start = world.decide().starts[0]
    assert (start.key, start.uid, start.resource_version) == (waiting.key, "uid-x", "5")
    for seen in (waiting, waiting.model_copy(), sched.job("x", 2, version=4)):
        assert world.feed(seen).starts() == {}
    assert queue_usage(world.state, "default") == QueueUsage(gpus=2, cpu_milli=1000, memory_bytes=sched.GI, running=1)
    world.feed(sched.job("x", 2, version=6, on=["a"], phase=Phase.STARTING))
    assert world.starts() == {} and queue_usage(world.state, "default").gpus == 2


def test_a_newer_version_without_placement_ends_the_assumption(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2), sched.queue(), sched.job("x", 2, version=9))
    assert world.starts() == {"x": ["a"]}
    assert world.feed(sched.job("x", 2, version=10)).starts() == {"x": ["a"]}


def test_another_object_of_the_name_ends_the_assumption(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2), sched.queue(), sched.job("x", 2, version=9))
    world.starts()
    assert world.feed(sched.job("x", 1, version=9, uid="new")).decide().starts[0].uid == "new"


def test_a_write_that_failed_gives_the_room_back(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2), sched.queue(), sched.job("x", 2), sched.job("y", 2, queued=1))
    assert world.starts() == {"x": ["a"]}
    world.state.drop_assumption(sched.key("x"))
    assert world.starts() == {"x": ["a"]}, "it keeps its place"
    world.state.forget_job(sched.key("x"))
    assert world.starts() == {"y": ["a"]}
    world.state.drop_assumption(sched.key("x"))


def test_a_stopping_job_still_holds_and_an_ended_one_does_not(sched: SimpleNamespace) -> None:
    world = sched.World().feed(
        sched.node("a", 2), sched.queue(), sched.job("r", 2, on=["a"], phase=Phase.STOPPING), sched.job("x", 1)
    )
    assert world.starts() == {}
    assert node_room(world.state, "a").jobs == (sched.key("r"),)
    world.feed(sched.job("r", 2, phase=Phase.SUCCEEDED, version=2))
    assert world.starts() == {"x": ["a"]}


def test_a_job_counts_on_its_node_before_the_node_is_known(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.job("r", 3, on=["a"]), sched.job("x", 2))
    assert world.starts() == {}
    assert world.feed(sched.node("a", 4)).starts() == {}
    assert node_room(world.state, "a").free_gpus == 1
    world.state.forget_node("a")
    world.state.observe_node(sched.node("a", 5))
    assert world.starts() == {"x": ["a"]}


def test_a_node_that_shrinks_under_its_jobs_takes_nothing_but_what_needs_none_of_it(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.queue(), sched.job("r", 4, on=["a"]))
    world.feed(sched.node("a", 2), sched.job("x", 1), sched.job("cpu", 0))
    assert world.starts() == {"cpu": ["a"]}
    assert node_room(world.state, "a").free_gpus == -2


def test_changes_of_queue_and_node_wake_what_waits(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 8), sched.queue(gpus=1), sched.job("x", 2))
    assert world.codes("x") == ["NeverFits"]
    assert world.feed(sched.queue(gpus=2)).starts() == {"x": ["a"]}
    world.feed(sched.job("y", 1), sched.job("z", 1, queue="new"))
    assert world.codes("y") == ["QueueLimit"] and world.codes("z") == ["QueueMissing"]
    assert world.feed(sched.queue("new", projects=())).codes("z") == ["ProjectNotAllowed"]
    assert world.feed(sched.queue("new")).starts() == {"z": ["a"]}
    world.state.forget_queue("default")
    assert world.codes("y") == ["QueueMissing"]


def test_room_in_the_queue_wakes_who_waited_for_it(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 8), sched.queue(gpus=2), sched.job("r", 2, on=["a"]), sched.job("x", 1))
    assert world.codes("x") == ["QueueLimit"]
    world.feed(sched.job("r", 2, phase=Phase.SUCCEEDED, version=2))
    assert world.starts() == {"x": ["a"]}


@pytest.mark.parametrize("how", ["suspended", "gone", "overtaken in priority"])
def test_who_waited_behind_a_reservation_starts_once_it_is_over(how: str, sched: SimpleNamespace) -> None:
    world = sched.World().feed(
        sched.node("a", 4), sched.queue(budget=1), sched.job("r", 2, on=["a"]), sched.job("head", 4)
    )
    world.feed(sched.job("small", 1, queued=1))
    assert world.starts(300) == {} and world.codes("small", 300) == ["BehindReservation"]
    if how == "suspended":
        world.feed(sched.job("head", 4, suspend=True, version=2))
    elif how == "gone":
        world.state.forget_job(sched.key("head"))
    else:
        world.feed(sched.job("small", 1, queued=1, priority=1, version=2))
    assert world.starts(300) == {"small": ["a"]}


def test_time_alone_ends_back_off_and_blame(sched: SimpleNamespace) -> None:
    world = sched.World().feed(
        sched.node("a", 8), sched.queue(), sched.job("x", not_before=20), sched.job("y", blamed={"a": 30})
    )
    assert [world.starts(now) for now in (10, 19, 20, 29, 30)] == [{}, {}, {"x": ["a"]}, {}, {"y": ["a"]}]


def test_usage_of_the_unknown(sched: SimpleNamespace) -> None:
    state = sched.World().state
    assert queue_usage(state, "nope") == QueueUsage()
    with pytest.raises(KeyError):
        node_room(state, "nope")


@pytest.mark.parametrize("seed", range(4))
def test_small_jobs_never_starve_a_gang(seed: int, sched: SimpleNamespace) -> None:
    """Four nodes, always more small jobs than room, each runs a while; a gang of two whole nodes gets through."""
    rng = random.Random(seed)
    world = sched.World().feed(*[sched.node(f"n{i}", 4) for i in range(4)], sched.queue())
    ends: dict[str, int] = {}
    gang_at = None
    for now in range(0, 4000, 5):
        if now == 5:
            world.feed(sched.job("gang", 4, workers=2, queued=1))
        for i in range(8 if now else 16):
            world.feed(sched.job(f"s{now}-{i}", rng.choice([1, 1, 2]) if now else 1, queued=now))
        for name, placed in world.starts(now).items():
            if name == "gang":
                gang_at = now
                assert len(placed) == 2
            ends[name] = now + rng.randint(10, 200)
        if gang_at is not None:
            break
        for name in [name for name, end in ends.items() if end <= now]:
            world.state.forget_job(sched.key(name))
            del ends[name]
    # 300 s until it reserves, then at most the longest job on the nodes kept for it.
    assert gang_at is not None and 300 <= gang_at <= 300 + 205


def test_without_a_reservation_it_would_starve(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2), sched.queue(), sched.job("s0", 1), sched.job("gang", 2, queued=1))
    for now in range(0, 2000, 10):
        world.feed(sched.job(f"s{now + 10}", 1, queued=now + 2))
        assert "gang" not in world.starts(now, reserve_after_s=1e9)
        world.state.forget_job(sched.key(f"s{now}"))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=200), st.integers(0, 2))
def test_ordered_is_a_sorted_set(steps: list[tuple[bool, int]], bulk: int) -> None:
    mine, theirs = SortedList[tuple[int]](), {(i,) for i in range(0, bulk * 1500, 1)}
    for item in theirs:
        mine.add(item)
    for add, value in steps:
        item = (value,)
        if add and item not in theirs:
            mine.add(item)
            theirs.add(item)
        elif item in theirs:
            mine.remove(item)
            theirs.remove(item)
        else:
            with pytest.raises(KeyError):
                mine.remove(item)
    assert list(mine) == sorted(theirs) and len(mine) == len(theirs) and bool(mine) == bool(theirs)
    for probe in (0, 700, 1499, 3001):
        assert mine.rank((probe,)) == sum(item < (probe,) for item in theirs)
        assert mine.next((probe,)) == min((item for item in theirs if item >= (probe,)), default=None)


def test_each_of_many_that_wait_may_be_observed_again(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), *(sched.job(f"j{i}", cpu=f"{i + 1}m", queued=i) for i in range(200)))
    assert world.starts() == {}
    for i in range(200):
        assert world.feed(sched.job(f"j{i}", cpu=f"{i + 1}m", queued=i, version=2)).starts() == {}
    assert len(world.feed(sched.node("a", 200)).starts()) == 200


needs = st.tuples(*[st.integers(0, 6)] * 3)


@examples(60)
@given(
    lanes=st.lists(st.tuples(st.integers(0, 2), needs), min_size=1, max_size=300),
    rooms=st.lists(needs, max_size=3),
    data=st.data(),
)
def test_an_index_of_lanes_finds_what_a_scan_finds(
    lanes: list[tuple[int, tuple[int, ...]]],
    rooms: list[tuple[int, ...]],
    data: st.DataObject,
    sched: SimpleNamespace,
) -> None:
    def fits(item: Waiting, room: tuple[int, ...]) -> bool:
        return all(need <= there for need, there in zip(item.needs, room, strict=True))

    lane: Any = None
    index = LaneIndex()
    items = [Waiting((p, sched.at(i % 7), sched.key(f"j{i}")), need, lane) for i, (p, need) in enumerate(lanes)]
    for item in items:
        index.add(item)
    for item in data.draw(st.lists(st.sampled_from(items), unique=True)):
        index.remove(item)
        items.remove(item)
    items.sort()
    begin = data.draw(st.sampled_from([(), (1,), *(item.order for item in items[:5])]))
    there = [item for item in items if item.order >= begin]
    for room in rooms:
        assert index.first_beyond(room, begin) == next((item for item in there if not fits(item, room)), None)
        behind = [item for item in items if item.order < begin and fits(item, room)]
        assert list(index.backwards(begin, room)) == behind[::-1]
    within = (item for item in there if any(fits(item, room) for room in rooms))
    assert index.first_within(rooms, begin) == next(within, None)
    assert index.priorities() == sorted({item.order[0] for item in items})


MODELS = ["a100", "h100", "t4"]
filters = st.sets(st.sampled_from(MODELS), max_size=2).map(lambda models: GpuFilter(tuple(sorted(models))))


@examples(150)
@given(st.lists(st.integers(1, 3), min_size=3, max_size=3), st.lists(st.tuples(filters, st.integers(1, 3))), filters)
def test_worst_held_is_what_the_worst_agent_could_pick(
    counts: list[int], wants: list[tuple[GpuFilter, int]], wanted: GpuFilter
) -> None:
    groups = tuple(GpuGroup(model, 1, count, count) for model, count in zip(MODELS, counts, strict=True))
    states = {tuple(counts)}  # what may be free after each claim, by every possible pick
    claims = []
    for own, gpus in wants[:4]:
        after = set()
        for free in states:
            usable = [min(free[i], gpus) if own.matches(MODELS[i], 1) else 0 for i in range(3)]
            for pick in itertools.product(*(range(most + 1) for most in usable)):
                if sum(pick) == gpus:
                    after.add(tuple(a - b for a, b in zip(free, pick, strict=True)))
        if not after:
            break
        claims.append(Claim(1, Request(1, gpus, 0, 0, own)))
        states = after
    # Only claims that were safe to start, as the scheduler would: whatever was picked before, they fit.
    matching = [i for i in range(3) if wanted.matches(MODELS[i], 1)]
    most = max(sum(counts[i] - free[i] for i in matching) for free in states)
    assert worst_held(groups, claims, wanted) == most
