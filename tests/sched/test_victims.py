"""Preemption within a queue: which jobs are stopped for which, by cases and against brute force."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sched import preempt, victims
from stoker.sched.entries import Entry
from stoker.sched.place import place
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.node import GPUNode
from stoker.spec.outcome import Intent
from stoker.spec.worker import Held, Progress
from tests.support.examples import examples
from tests.support.preempting import claims, cost_of, preempting, run, wrote


def held(job: TrainingJob) -> TrainingJob:
    """Its command has failed: it is kept for a look inside."""
    return wrote(job, progress=Progress(at=0, held=Held(since=0, until=9e9, exit_code=1)))


CASES: list[tuple[str, Any, dict[str, list[str]]]] = [
    (
        "the one that loses least work",
        lambda s: [s.node("a", 2), run(s, "old", "a"), run(s, "new", "a", since=90), s.job("x", priority=1)],
        {"x": ["new"]},
    ),
    (
        "a checkpoint makes it cheap",
        lambda s: [s.node("a", 2), run(s, "old", "a", saved=99), run(s, "new", "a", since=50), s.job("x", priority=1)],
        {"x": ["old"]},
    ),
    (
        "one that has failed and is held has nothing to lose",
        lambda s: [s.node("a", 2), held(run(s, "failed", "a")), run(s, "new", "a", since=99), s.job("x", priority=1)],
        {"x": ["failed"]},
    ),
    (
        "none of the same or a higher priority",
        lambda s: [s.node("a", 2), run(s, "u", "a", priority=1), run(s, "v", "a", priority=2), s.job("x", priority=1)],
        {},
    ),
    (
        "none that is not preemptible",
        lambda s: [s.node("a", 2), run(s, "u", "a", gpus=2, preemptible=False), s.job("x", priority=1)],
        {},
    ),
    (
        "none for a job that would not start then",
        lambda s: [s.node("a", 2), run(s, "u", "a"), run(s, "v", "a", preemptible=False), s.job("x", 2, priority=1)],
        {},
    ),
    (
        "what is free counts, and none is stopped beyond need",
        lambda s: [
            s.node("a", 4),
            *(run(s, name, "a", since=20) for name in "uv"),
            run(s, "w", "a"),
            s.job("x", 3, priority=1),
        ],
        {"x": ["u", "v"]},
    ),
    (
        "one dear job where the cheap ones would have to be more",
        lambda s: [
            s.node("a", 4),
            s.node("b", 4),
            *(run(s, name, "a", since=60) for name in "uvw"),
            run(s, "y", "a", preemptible=False),
            run(s, "gang", "b", gpus=4, since=95),
            s.job("x", 4, priority=1),
        ],
        {"x": ["gang"]},
    ),
    (
        "room in the queue's limit is made too",
        lambda s: [
            preempting(s.queue(gpus=2)),
            s.node("a", 8),
            *(run(s, name, "a") for name in "uv"),
            s.job("x", priority=1),
        ],
        {"x": ["u"]},
    ),
    (
        "a gang's worth over several nodes",
        lambda s: [
            s.node("a", 1),
            s.node("b", 1),
            run(s, "u", "a"),
            run(s, "v", "b"),
            s.job("x", workers=2, priority=1),
        ],
        {"x": ["u", "v"]},
    ),
    (
        "each victim for one job only, the highest priority first",
        lambda s: [
            s.node("a", 2),
            run(s, "u", "a", since=50),
            run(s, "v", "a"),
            *(s.job(name, priority=p) for name, p in (("x", 1), ("y", 3), ("z", 2))),
        ],
        {"y": ["u"], "z": ["v"]},
    ),
    (
        "no job of another queue",
        lambda s: [s.node("a", 1), s.queue("other"), run(s, "u", "a", queue="other"), s.job("x", priority=1)],
        {},
    ),
]


@pytest.mark.parametrize(("name", "objects", "expected"), CASES, ids=[case[0] for case in CASES])
def test_victims(name: str, objects: Any, expected: dict[str, list[str]], sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), *objects(sched))
    assert claims(world.decide(100)) == expected
    assert not claims(world.decide(100)), "decided once"


def test_nothing_is_preempted_where_the_queue_does_not_say_so(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 1), run(sched, "u", "a"), sched.job("x", priority=1))
    assert claims(world.decide(100)) == {}
    world.feed(preempting(sched.queue()))
    assert claims(world.decide(100)) == {"x": ["u"]}, "once it does"


def test_no_more_victims_than_a_status_holds(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2), *(run(sched, name, "a") for name in "uv"))
    with mock.patch.object(preempt, "_MOST_VICTIMS", 1):
        assert claims(world.feed(sched.job("x", 2, priority=1)).decide(100)) == {}
        assert claims(world.feed(sched.job("y", priority=1)).decide(101)) == {"y": ["u"]}


def test_only_domains_that_could_hold_the_gang_are_searched(sched: SimpleNamespace) -> None:
    """Else a gang that fits in none would cost a search per domain in each decide."""
    world = sched.World(SchedulerState(("rack",))).feed(preempting(sched.queue()))
    for name, rack, gpus in (("a", "r", 2), ("b", "s", 1), ("c", "s", 1), ("d", "t", 1), ("e", "u", 1)):
        world.feed(sched.node(name, gpus, labels={"rack": rack}), run(sched, f"on-{name}", name, gpus=gpus))
    with mock.patch.object(preempt, "Problem", wraps=preempt.Problem) as searched:
        world.feed(sched.job("wide", 2, workers=2, required="rack", priority=2))
        assert claims(world.decide(100)) == {} and searched.call_count == 1
        world.feed(sched.job("x", workers=2, required="rack", priority=1))
        assert claims(world.decide(101)) == {"x": ["on-a"]}
    assert searched.call_count == 1 + 1 + 1 + 2, "again, once for x, and in racks r and s"


def test_a_job_that_came_while_a_start_was_written_preempts_once_it_is(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 1), sched.job("low"))
    (start,) = world.decide(0).starts
    assert claims(world.feed(sched.job("high", priority=1)).decide(1)) == {}
    placed = {"attempt": 1, "placement": start.placement, "gpu_type": start.gpu_type}
    world.feed(wrote(sched.job("low"), phase=Phase.STARTING, **placed))
    assert claims(world.decide(2)) == {"high": ["low"]}


def test_a_job_whose_priority_is_lowered_may_be_preempted_from_then_on(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 1), run(sched, "u", "a", priority=2))
    assert claims(world.feed(sched.job("x", priority=1)).decide(100)) == {}
    assert claims(world.feed(wrote(run(sched, "u", "a"))).decide(101)) == {"x": ["u"]}


def test_a_minimum_run_time_is_kept_and_woken_for(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue(), "1m"), sched.node("a", 1), sched.job("x", priority=1))
    starting = sched.job("u", on=("a",), phase=Phase.STARTING, attempt=1)
    world.feed(starting)
    assert world.decide(5).wake_at is None
    world.feed(wrote(starting, phase=Phase.RUNNING, started_at=sched.at(10)))
    world.feed(preempting(sched.queue("idle")), sched.job("waits", queue="idle"))
    decided = world.decide(20)
    assert (claims(decided), decided.wake_at) == ({}, sched.at(70))
    assert claims(world.decide(70)) == {"x": ["u"]}


kinds = st.sampled_from([("A100", 80, ""), ("T4", 16, "")])
nodes = st.lists(st.tuples(st.lists(kinds, max_size=4), st.integers(1, 6)), min_size=1, max_size=3)
runs = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(0, 2),
            "on": st.lists(st.integers(0, 2), min_size=1, max_size=3),
            "since": st.integers(0, 100),
            "priority": st.integers(0, 1),
            "preemptible": st.sampled_from([True, True, True, False]),
            "cpu": st.sampled_from(["1", "2"]),
            "models": st.sampled_from([(), (), ("t4",)]),
        }
    ),
    max_size=7,
)
wanted = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 3),
        "workers": st.integers(1, 3),
        "cpu": st.sampled_from(["0", "1", "3"]),
        "models": st.sampled_from([(), (), ("a100",)]),
        "required": st.sampled_from([None, None, "rack"]),
    }
)


@pytest.mark.parametrize("exact", [True, False])
@examples(60)
@given(cluster=nodes, running=runs, asked=wanted, limit=st.sampled_from([None, None, 3, 5]))
def test_victims_are_a_cheapest_set_and_the_job_starts_once_they_are_gone(
    cluster: list[tuple[list[Any], int]],
    running: list[dict[str, Any]],
    asked: dict[str, Any],
    limit: int | None,
    exact: bool,
    sched: SimpleNamespace,
) -> None:
    """Beyond `EXACT` candidates: a set of which none can be spared."""
    names = [f"n{i}" for i in range(len(cluster))]
    mixed = any(len(set(gpus)) > 1 for gpus, _ in cluster)
    table: list[GPUNode] = [
        sched.node(name, gpus, cpu=cpu, labels={"rack": rack})
        for name, (gpus, cpu), rack in zip(names, cluster, "rss", strict=False)
    ]
    world = sched.World(SchedulerState(("rack",))).feed(preempting(sched.queue(gpus=limit)), *table)
    for number, one in enumerate(running):
        on = [names[i % len(names)] for i in one["on"]]
        rest = {name: one[name] for name in ("gpus", "since", "priority", "preemptible", "cpu", "models")}
        world.feed(run(sched, f"r{number}", *on, **rest))
    state = world.state
    x = sched.job("x", asked["gpus"], **{k: v for k, v in asked.items() if k != "gpus"}, priority=1)
    world.feed(x)
    (entry,) = [one for one in state.entries.values() if one.key.name == "x"]
    may = [
        one
        for one in state.entries.values()
        if one.job.spec.priority < 1 and one.job.spec.preemptible and one is not entry
    ]

    def starts(without: tuple[Entry, ...]) -> bool:
        with state.what_if():
            for victim in without:
                state.vacate(victim.key)
            room = entry.queue.has_room(entry.request)
            return room and place(state.nodes, entry.request) is not None

    solved = [subset for n in range(len(may) + 1) for subset in itertools.combinations(may, n) if starts(subset)]
    costs = [sum(cost_of(one, sched.at(100)) for one in subset) for subset in solved]
    with mock.patch.object(victims, "EXACT", victims.EXACT if exact else 0):
        decided = world.decide(100)
    if starts(()) or decided.starts:
        assert not decided.claims
        return
    found = [change.claim for change in decided.claims]
    if not solved or not found:
        assert not found and (mixed or not solved), "what can start by preemption does"
        return
    (claim,) = found
    assert claim is not None
    chosen = tuple(state.entries[victim.key] for victim in claim.victims)
    assert set(chosen) <= set(may)
    cost = sum(cost_of(one, sched.at(100)) for one in chosen)
    if not mixed and exact:
        assert cost == pytest.approx(min(costs))
    for victim in chosen if not mixed else ():
        assert not starts(tuple(one for one in chosen if one is not victim)), "one could be spared"
    for victim in chosen:
        job = victim.job
        world.feed(wrote(job, 9, phase=Phase.QUEUED, placement=(), intent=Intent.NONE))
    started = {start.key.name: start.placement for start in world.decide(101).starts}
    assert started["x"] == claim.placement


def test_a_lane_behind_many_for_which_none_can_be_stopped_has_its_turn(sched: SimpleNamespace) -> None:
    """Each job is a class of its own; on `a` runs nothing that may be stopped."""
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2), sched.node("b", 1, model="H100"))
    world.feed(run(sched, "urgent", "a", gpus=2, priority=9), run(sched, "low", "b", preemptible=False))
    vain = [sched.job(f"x{i}", 2, cpu=f"{i + 1}m", priority=1, queued=i) for i in range(200)]
    world.feed(*vain, sched.job("last", models=("H100",), priority=1, queued=999))
    assert claims(world.decide(1000)) == {}
    world.feed(wrote(run(sched, "low", "b")))
    found, now, tried = dict[str, list[str] | None](), 1000.0, list[int]()
    while not found and len(tried) < 20:
        before = sched.fingerprint(world.state)
        with world.state.what_if():
            world.decide(now)
        assert sched.fingerprint(world.state) == before
        search = preempt.Preemption._search
        with mock.patch.object(preempt.Preemption, "_search", autospec=True, side_effect=search) as one:
            decided = world.decide(now)
        found, tried = claims(decided), [*tried, one.call_count]
        assert found or decided.wake_at is not None, "nothing would have it looked at"
        now = (decided.wake_at - sched.T0).total_seconds() if decided.wake_at is not None else now
    assert found == {"last": ["low"]} and max(tried) <= 64
