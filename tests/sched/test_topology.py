"""Gangs that are to be close together: against brute force over the domains, and what `why` says."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sched.state import SchedulerState
from stoker.spec.reasons import Code

LEVELS = ("zone", "rack")

nodes = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["x", "y", None]), st.sampled_from(["1", "2", None])),
    min_size=1,
    max_size=7,
)
gangs = st.tuples(
    st.integers(1, 2),
    st.integers(2, 5),
    st.sampled_from([None, "zone", "rack"]),
    st.sampled_from([None, "zone", "rack", "row"]),
)


def _world(sched: SimpleNamespace, cluster: list[tuple[int, str | None, str | None]]) -> Any:
    world = sched.World(SchedulerState(LEVELS)).feed(sched.queue())
    for number, (gpus, zone, rack) in enumerate(cluster):
        labels = {level: value for level, value in zip(LEVELS, (zone, rack), strict=True) if value}
        world.feed(sched.node(f"n{number}", gpus, labels=labels))
    return world


def _domain(cluster: list[tuple[int, str | None, str | None]], node: str, level: str) -> tuple[str, ...] | None:
    path = cluster[int(node[1:])][1 : LEVELS.index(level) + 2]
    return tuple(map(str, path)) if all(path) else None


@settings(max_examples=150, deadline=None)
@given(cluster=nodes, gang=gangs)
def test_a_gang_is_as_close_together_as_it_asks_and_as_there_is_room(
    cluster: list[tuple[int, str | None, str | None]],
    gang: tuple[int, int, str | None, str | None],
    sched: SimpleNamespace,
) -> None:
    gpus, workers, required, preferred = gang
    world = _world(sched, cluster)
    world.feed(sched.job("x", gpus, workers=workers, required=required, preferred=preferred))
    started = world.starts().get("x")

    takes = {f"n{number}": min(free // gpus, workers) for number, (free, _, _) in enumerate(cluster)}

    def holds(level: str, within: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
        found = Counter[tuple[str, ...]]()
        for node, count in takes.items():
            domain = _domain(cluster, node, level)
            if domain is not None and domain[: len(within)] == within:
                found[domain] += count
        return found

    if required is not None:
        assert (started is not None) == any(count >= workers for count in holds(required).values())
    else:
        assert (started is not None) == (sum(takes.values()) >= workers)
    if started is None:
        return
    assert all(count <= takes[node] for node, count in Counter(started).items())
    within: tuple[str, ...] = ()
    if required is not None:
        [one] = {_domain(cluster, node, required) for node in started}
        assert one is not None
        within = one
        least = min(count for count in holds(required).values() if count >= workers)
        assert holds(required)[within] == least, "large domains stay whole"
    if preferred not in LEVELS or (required is not None and LEVELS.index(preferred) <= LEVELS.index(required)):
        return
    inner = LEVELS[LEVELS.index(required) + 1 if required else 0 : LEVELS.index(preferred) + 1]
    for level in reversed(inner):
        if any(count >= workers for count in holds(level, within).values()):
            assert len({_domain(cluster, node, level) for node in started} - {None}) == 1
            return
    counts = list(holds(preferred, within).values())
    fewest = [n for n in range(1, len(counts) + 1) if any(sum(some) >= workers for some in combinations(counts, n))]
    if fewest:
        assert len({_domain(cluster, node, preferred) for node in started}) <= fewest[0]


def test_a_single_worker_keeps_the_emptiest_domain_whole(sched: SimpleNamespace) -> None:
    world = _world(sched, [(4, "x", "1"), (4, "x", "1"), (4, "x", "2"), (1, "x", "2")])
    assert world.feed(sched.job("x", 4)).starts() == {"x": ["n2"]}


def test_a_node_that_joins_the_domain_lets_it_start(sched: SimpleNamespace) -> None:
    world = _world(sched, [(2, "x", "1"), (2, "x", "2")])
    world.feed(sched.job("x", 2, workers=2, required="rack"))
    assert world.starts() == {}
    world.feed(sched.node("n1", 2, labels={"zone": "x", "rack": "1"}))
    assert sorted(world.starts()["x"]) == ["n0", "n1"]


def test_nodes_that_come_and_go_leave_no_domain_behind(sched: SimpleNamespace) -> None:
    world = _world(sched, [(4, "x", "1"), (4, "x", "2")])

    for number in range(50):
        world.feed(sched.node("new", 4, labels={"zone": "x", "rack": f"of-its-own-{number}"}))
        world.state.forget_node("new")
    domains = world.state.nodes._domains
    assert set(domains._numbers) == {("x",), ("x", "1"), ("x", "2")} and len(domains._spare) == 1
    world.feed(sched.node("new", 4, labels={"zone": "x", "rack": "9"}), sched.job("g", 4, workers=2, required="rack"))
    assert world.state.nodes.domain_of("rack").max() == 4, "a number that is free again is used again"
    assert world.starts() == {}
    world.feed(sched.node("n0", 8, labels={"zone": "x", "rack": "1"}))
    assert world.starts(1) == {"g": ["n0", "n0"]}


def test_a_reservation_keeps_nodes_of_one_domain(sched: SimpleNamespace) -> None:
    world = _world(sched, [(2, "x", "1"), (2, "x", "2"), (2, "x", "2")])
    world.feed(
        sched.queue(budget=10),
        *(sched.job(f"r{number}", 1, on=(f"n{number}",), attempt=1) for number in range(3)),
        sched.job("gang", 2, workers=2, required="rack", queued=0),
        sched.job("small", 1, workers=2, queued=999),
    )
    started = world.starts(1000, reserve_after_s=300)
    assert [one.spread for one in world.state.plan] == [((1, 1), (2, 1))]
    assert started == {}, "two of the three GPUs that are free are kept"


@pytest.mark.parametrize(
    ("asks", "code", "message"),
    [
        (
            {"workers": 2, "required": "rack"},
            Code.NO_CAPACITY,
            "all workers within one rack, likeliest 2: short 1 of 4 GPUs",
        ),
        ({"workers": 3, "required": "rack"}, Code.NEVER_FITS, "the largest rack, empty of jobs, holds 2"),
        (
            {"workers": 2, "required": "row"},
            Code.NO_CAPACITY,
            "topology.required is row, the cluster's topology levels are zone and rack: ",
        ),
    ],
)
def test_why(asks: dict[str, Any], code: Code, message: str, sched: SimpleNamespace) -> None:
    world = _world(sched, [(2, "x", "1"), (2, "x", "2"), (2, "x", "2")])
    world.feed(sched.job("r", 1, on=("n1",), attempt=1), sched.job("x", 2, **asks))
    assert world.starts() == {}
    [found] = world.reasons()[sched.key("x")]
    assert (found.code, message in found.message) == (code, True), found.message


def test_on_one_machine_all_are_together(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 1), sched.node("b", 1))
    assert sorted(world.feed(sched.job("x", 1, workers=2, required="rack")).starts()["x"]) == ["a", "b"]
