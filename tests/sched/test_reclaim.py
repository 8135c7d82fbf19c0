"""Reclaim: an owner gets its guarantee back from borrowers."""

from __future__ import annotations

import cProfile
import pstats
import random
from types import SimpleNamespace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.decide import Decisions
from stoker.sched.job_order import JobOrder
from stoker.spec.job import Phase
from tests.support.examples import examples
from tests.support.preempting import claims, preempting, run, wrote


def test_an_owner_gets_its_guarantee_back_from_borrowers_and_no_more(sched: SimpleNamespace) -> None:
    queues = [sched.queue("own", guarantee=2), sched.queue("lent", guarantee=1), sched.queue("free")]
    world = sched.World().feed(*queues, sched.node("a", 4))
    world.feed(run(sched, "kept", "a", queue="lent", since=95), run(sched, "old", "a", queue="lent"))
    world.feed(
        *(run(sched, name, "a", queue="free", since=since, priority=9) for name, since in (("f", 50), ("g", 60)))
    )
    world.feed(*(sched.job(name, queue="own") for name in "xyz"), sched.job("other", queue="free", priority=99))
    decided = claims(world.decide(100))
    assert decided.keys() == {"x", "y"}, "what is guaranteed, for one by one"
    stopped = [name for names in decided.values() for name in names or ()]
    assert sorted(stopped) == ["g", "kept"], "what loses least; lent keeps what is guaranteed to it"


def test_a_queue_without_guarantee_and_one_at_its_guarantee_reclaim_nothing(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue("own", guarantee=1), sched.queue("free"), sched.node("a", 2))
    world.feed(run(sched, "u", "a", queue="own"), run(sched, "f", "a", queue="free"))
    world.feed(sched.job("x", queue="own"), sched.job("y", queue="free"))
    assert claims(world.decide(100)) == {}


def test_a_whole_cluster_is_reclaimed_in_decides_of_bounded_length(sched: SimpleNamespace) -> None:
    """The same victims as in one."""

    def reclaims(most: int | None, count: int, differ: int) -> list[dict[str, list[str] | None]]:
        world = sched.World().feed(sched.queue("own", guarantee=count), sched.queue("free"))
        world.feed(sched.node("a", count, cpu=2 * count, memory=8 * count))
        world.feed(*(run(sched, f"r{i}", "a", queue="free", since=i) for i in range(count)))
        world.feed(*(sched.job(f"x{i}", queue="own", cpu=f"{1000 + differ * i}m", queued=i) for i in range(count)))
        found = [world.decide(2000, most=most)]
        while found[-1].is_cut_short:
            found.append(world.decide(2000, most=most))
        return [claims(one) for one in found]

    for count, differ, most, parts in ((40, 1, 10, [10, 10, 10, 10, 0]), (1500, 0, 100, [1 + 8 + 64 + 512, 585, 330])):
        (at_once,), found = reclaims(None, count, differ), reclaims(most, count, differ)
        assert [len(one) for one in found] == parts
        assert {name: victims for one in found for name, victims in one.items()} == at_once


def test_two_queues_below_their_guarantees_take_nothing_from_each_other(sched: SimpleNamespace) -> None:
    """Cores are guaranteed to both; that neither names memory lends none of it."""
    queues = [sched.queue(name, guaranteed={"cpu": "2"}) for name in ("one", "two")]
    world = sched.World().feed(*queues, sched.queue("free"), sched.node("a", 0, cpu=3))
    holds = [run(sched, name, "a", gpus=0, queue=queue) for name, queue in (("u", "one"), ("v", "two"), ("f", "free"))]
    world.feed(*holds, sched.job("x", 0, queue="one"), sched.job("y", 0, queue="two"))
    assert claims(world.decide(100)) == {"x": ["f"]}


def test_siblings_settle_within_their_parents_guarantee_first(sched: SimpleNamespace) -> None:
    tree = [
        sched.queue("top", guarantee=2),
        sched.queue("a", guarantee=1, parent="top"),
        sched.queue("b", parent="top"),
    ]
    world = sched.World().feed(*tree, sched.queue("else"), sched.node("n", 3))
    world.feed(*(run(sched, name, "n", queue="b") for name in "uv"), run(sched, "e", "n", queue="else", since=99))
    world.feed(sched.job("x", queue="a"))
    assert claims(world.decide(100)) == {"x": ["u"]}, "top has its guarantee: what a lacks, b holds"


def reclaimed(sched: SimpleNamespace, nodes: int) -> tuple[float, float]:
    """An owner reclaims that many nodes of 8 GPUs. Function calls per claimant: to decide the claims, to start all."""
    world = sched.World().feed(sched.queue("own", guarantee=8 * nodes), sched.queue("lent"))
    world.feed(*(sched.node(f"n{i:03}", 8) for i in range(nodes)))
    borrowers = [run(sched, f"b{i:04}", f"n{i // 8:03}", queue="lent", since=i % 50) for i in range(8 * nodes)]
    world.feed(*borrowers)
    world.decide(99)
    world.feed(*(sched.job(f"x{i:04}", queue="own") for i in range(8 * nodes)))
    with cProfile.Profile() as claiming:
        decided = world.decide(100)
    assert [len(names or ()) for names in claims(decided).values()] == [1] * len(borrowers), "the least there is"
    stopped = [victim.name for change in decided.claims if change.claim for victim in change.claim.victims]
    assert len(set(stopped)) == len(borrowers), "each for one claimant"
    world.feed(*(wrote(sched.job(change.key.name, queue="own"), claim=change.claim) for change in decided.claims))
    started: list[str] = []
    starting = cProfile.Profile()
    for at in range(0, len(borrowers), 16):
        world.feed(*(wrote(one, phase=Phase.QUEUED, placement=()) for one in borrowers[at : at + 16]))
        with starting:
            started += world.starts(101)
    assert len(set(started)) == len(borrowers)
    count = len(borrowers)
    return tuple(pstats.Stats(one).total_calls / count for one in (claiming, starting))  # type: ignore[attr-defined]


def test_a_reclaim_is_linear_in_its_victims(sched: SimpleNamespace) -> None:
    """By function calls, that no other load of the machine changes."""
    small, large = reclaimed(sched, 8), reclaimed(sched, 48)
    assert large[0] < 1.3 * small[0] and large[1] < 1.5 * small[1], (small, large)


def reclaiming(sched: SimpleNamespace, seed: int) -> Decisions:
    """Owners, two of them below one parent or beside it, and a queue that preempts by priority, all with many jobs of
    few classes, some of which have waited long enough to reserve."""
    rng = random.Random(seed)
    parent = rng.choice(["top", None])
    queues = [
        sched.queue("top", guarantee=rng.choice([8, 16])),
        sched.queue("own", guarantee=rng.randrange(8), parent=parent, weight=rng.choice([1, 3])),
        sched.queue("too", guarantee=rng.randrange(8), parent=parent, gpus=rng.choice([None, 9])),
        preempting(sched.queue("urgent", guarantee=rng.choice([None, 4]), gpus=rng.choice([None, 12]))),
        sched.queue("lent", budget=100.0),
    ]
    world = sched.World().feed(*queues, *(sched.node(f"n{i}", 8) for i in range(4)))
    for i in range(32):
        if rng.random() < 0.9:
            queue = rng.choice(["lent", "lent", "lent", "urgent", "too"])
            world.feed(run(sched, f"r{i:02}", f"n{i // 8}", queue=queue, since=rng.randrange(90)))
    for i in range(rng.choice([10, 40])):
        asked = {"queue": rng.choice(["own", "too", "urgent", "lent"]), "priority": rng.choice([0, 0, 1])}
        world.feed(sched.job(f"x{i:02}", rng.choice([1, 1, 1, 2]), queued=rng.choice([0, 395]), **asked))
    decided: Decisions = world.decide(400)
    return decided


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_claims_decided_in_a_row_are_those_of_one_turn_after_another(seed: int, sched: SimpleNamespace) -> None:
    found = reclaiming(sched, seed)
    with mock.patch.object(JobOrder, "in_a_row", return_value=[]):
        assert reclaiming(sched, seed) == found


def test_claims_are_decided_in_a_row(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue("own", guarantee=16), sched.queue("lent"))
    world.feed(*(sched.node(f"n{i}", 8) for i in range(2)))
    world.feed(*(run(sched, f"b{i:02}", f"n{i // 8}", queue="lent", since=i) for i in range(16)))
    world.feed(*(sched.job(f"x{i:02}", queue="own") for i in range(16)))
    with mock.patch.object(JobOrder, "pop", autospec=True, side_effect=JobOrder.pop) as turns:
        assert len(claims(world.decide(100))) == 16
    assert turns.call_count == 2, "one turn, and that there is no other"
