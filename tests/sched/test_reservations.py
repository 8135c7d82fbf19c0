"""Keeping nodes for a gang: which gang, which nodes, at what cost. Time runs by events, as the operator lives it."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sched import decide
from stoker.sched.reservations import MAX_RESERVATIONS
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.job_parts import Stop
from stoker.spec.queue import Discipline
from stoker.why.explain import explain
from tests.support.examples import examples


class Crowd:
    """Nodes of 4 GPUs, and 8 1-GPU jobs more than they hold, always; `idle_s` is what those could use."""

    def __init__(self, sched: SimpleNamespace, budget: float, nodes: int, lasts: Any) -> None:
        self.sched, self.world, self.lasts = sched, sched.World(), lasts
        self.world.feed(*[sched.node(f"n{i}", 4) for i in range(nodes)])
        self.world.feed(*[sched.queue(name, budget=budget) for name in ("small", "large")])
        self.jobs: dict[str, TrainingJob] = {}
        self.ends: list[tuple[float, str]] = []
        self.started: dict[str, float] = {}
        self.now, self.idle_s, self.made = 0.0, 0.0, 0

    def submit(self, job: TrainingJob) -> None:
        self.jobs[job.metadata.name] = job
        self.world.feed(job)

    def run(self, until: float) -> None:
        """Decide at each event until then, or until the gang has started."""
        while self.now < until and "gang" not in self.started:
            while self.made - len(self.started.keys() - {"gang"}) < 8:
                self.made += 1
                self.submit(self.sched.job(f"s{self.made}", 1, queue="small", queued=self.now))
            decisions = self.world.decide(self.now)
            for start in decisions.starts:
                self._start(start.key.name, start.placement)
            self.record = dict(decisions.reservations)
            if decisions.starts:
                continue  # the crowd is to be as large as it was
            wake = (decisions.wake_at - self.sched.T0).total_seconds() if decisions.wake_at else until
            then = min(self.ends[0][0], wake, until)
            self.idle_s += min(int(self.world.state.nodes.free_gpu.sum()), 8) * (then - self.now)
            self.now = then
            while self.ends and self.ends[0][0] <= self.now:
                self.world.state.forget_job(self.sched.key(heapq.heappop(self.ends)[1]))

    def _start(self, name: str, placement: Any) -> None:
        assert name not in self.started, "started twice"
        self.started[name] = self.now
        running = {"phase": Phase.RUNNING, "placement": placement, "started_at": self.sched.at(self.now)}
        old = self.jobs[name]
        meta = old.metadata.model_copy(update={"resource_version": "2"})
        self.world.feed(old.model_copy(update={"metadata": meta, "status": old.status.model_copy(update=running)}))
        heapq.heappush(self.ends, (self.now + self.lasts(), name))


@examples(8)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([0.0, 0.25, 1.0]), workers=st.sampled_from([1, 2, 3]))
def test_the_budget_is_never_exceeded_and_a_gang_with_budget_starts(
    seed: int, budget: float, workers: int, sched: SimpleNamespace
) -> None:
    rng = random.Random(seed)
    crowd = Crowd(sched, budget, 3, lambda: rng.uniform(1, 1000))
    crowd.run(50)
    crowd.submit(sched.job("gang", 4, workers=workers, queue="large", queued=50))
    for now in range(500, 4001 if not budget else 40_001, 500):
        crowd.run(now)
        may_s = budget * 4 * workers * (crowd.now - 50)
        assert crowd.idle_s <= may_s + 12, (now, "a second's worth of every GPU is what rounding may add")
    assert ("gang" in crowd.started) == (budget > 0)


def test_a_spent_budget_gives_the_nodes_back_and_why_has_the_numbers(sched: SimpleNamespace) -> None:
    rng = random.Random(1)
    crowd = Crowd(sched, 0.25, 3, lambda: rng.uniform(1, 1000))
    crowd.submit(sched.job("gang", 4, workers=2, queue="large"))
    crowd.world.feed(sched.job("forever", 1, queue="small", on=["n0"]))
    crowd.world.feed(sched.job("longer", 1, queue="small", on=["n1"]))
    crowd.world.feed(sched.job("evermore", 1, queue="small", on=["n2"]))
    state, gang = crowd.world.state, sched.key("gang")
    records = []
    for now in range(50, 60_000, 50):
        crowd.run(now)
        for record in crowd.record.values():
            state.wrote(gang, record)
            records.append(record)
        if records and records[-1].given_back:
            break
    assert records[0].nodes and not records[0].given_back and len(records) < 20
    cost = records[-1]
    assert cost.idle_gpu_s <= 0.25 * 8 * crowd.now and state.nodes.free_gpu.sum() == 0
    said = explain(state, gang, sched.at(crowd.now))
    (spent,) = [blocker for blocker in said.blockers if blocker.code == "ReservationSpent"]
    hours = f"{cost.idle_gpu_s / 3600:.3g} GPU-hours"
    assert f"GPUs idle for {hours}" in spent.message and spent.queue == "large"
    assert "reservationBudget 0.25 of queue 'large' x 8 GPUs x " in spent.message
    # Another process, which has only the job's status to go by, says the same.
    fresh = sched.World().feed(*[sched.node(f"n{i}", 4) for i in range(3)], sched.queue("large"))
    job = crowd.jobs["gang"]
    fresh.feed(job.model_copy(update={"status": job.status.model_copy(update={"reservation": cost})}))
    fresh.feed(*[sched.job(f"r{i}", 4, queue="large", on=[f"n{i}"]) for i in range(3)])
    assert spent in explain(fresh.state, gang, sched.at(crowd.now)).blockers


@pytest.mark.parametrize(
    ("budget", "discipline", "may", "is_kept"),
    [
        (0.1, "fifo", "0.222 GPU-hours (reservationBudget 0.1", False),
        (0.2, "fifo", "", True),
        (None, "fifo", "0.111 GPU-hours (reservationBudget 0.05", False),
        (None, "las", "0.0444 GPU-hours (reservationBudget 0.02", False),
    ],
)
def test_why_says_that_keeping_the_whole_cluster_would_cost_more_than_it_may(
    budget: float | None, discipline: str, may: str, is_kept: bool, sched: SimpleNamespace
) -> None:
    """Jobs are taken to run as long again as they have, 600 s at least: in 1000, 800, 600 and 600 s. That the first
    three wait for the last costs 1000 GPU-seconds; by then the gang has waited for 2000 s."""
    large = sched.queue("large", budget=budget, discipline=Discipline(discipline))
    world = sched.World().feed(sched.node("a", 4), large, sched.queue("small"))
    for name, started in (("p", 0), ("q", 200), ("r", 400), ("s", 900)):
        job = sched.job(name, 1, queue="small", on=["a"])
        status = job.status.model_copy(update={"started_at": sched.at(started)})
        world.feed(job.model_copy(update={"status": status}))
    world.feed(sched.job("gang", 4, queue="large"), sched.job("behind", 1, queue="small", queued=1))
    assert world.starts(1000) == {}
    assert (sched.key("gang") in [one.order[2] for one in world.state.plan]) == is_kept
    said = explain(world.state, sched.key("gang"), sched.at(1000))
    assert said.blockers[0].code == "NoCapacity" and said.blockers[0].short == 4
    spent = [one.message for one in said.blockers if one.code == "ReservationSpent"]
    assert spent == [
        "no nodes are kept for it: until it starts that could leave GPUs idle for 0.417 GPU-hours, half as much again "
        f"as is expected, and may for {may} of queue 'large' x 4 GPUs x 33m20s of waiting by then)"
    ] * (not is_kept)
    early = explain(world.state, sched.key("gang"), sched.at(200))
    assert [one.code for one in early.blockers] == ["NoCapacity"], "it would not reserve yet"


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        ({"a": {"ran": 864_000, "free": 3}, "b": {"ran": 1200, "free": 0}}, "b"),
        ({"a": {"ran": 7200, "free": 0}, "b": {"ran": 3600, "free": 0}}, "b"),
        ({"a": {"ran": 7200, "free": 0, "longest": "2h5m"}, "b": {"ran": 3600, "free": 0}}, "a"),
    ],
    ids=["not beside a job of ten days", "where jobs are youngest", "before a deadline that is near"],
)
def test_nodes_kept_are_those_free_soonest(ended: dict[str, dict[str, Any]], kept: str, sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(budget=100), sched.job("gang", 4), sched.job("small", 1, queued=1))
    for name, node in ended.items():
        job = sched.job(f"r-{name}", 4 - node["free"], on=[name])
        status = job.status.model_copy(update={"started_at": sched.at(1000 - node["ran"])})
        spec = job.spec.model_copy(update={"stop": Stop(max_duration=node.get("longest"))})
        world.feed(sched.node(name, 4), job.model_copy(update={"spec": spec, "status": status}))
    world.decide(1000)
    assert [world.state.nodes.names[slot] for slot, _ in world.state.plan[0].spread] == [kept]


def test_a_gang_has_those_nodes_kept_that_are_free_soonest(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(budget=100), sched.job("gang", 4, workers=2))
    for name, ran in (("a", 864_000), ("b", 1200), ("c", 600)):
        job = sched.job(f"r-{name}", 4, on=[name])
        status = job.status.model_copy(update={"started_at": sched.at(1000 - ran)})
        world.feed(sched.node(name, 4), job.model_copy(update={"status": status}))
    world.decide(1000)
    assert sorted(world.state.plan[0].nodes) == ["b", "c"]


PRIORITIES = [
    # A job is (name, queue, priority, when queued); there is room for two.
    ("passes only its own queue's", [("old", "a", 0, 1), ("young", "b", 9, 2), ("mid", "a", 0, 3)], {"old", "young"}),
    ("not the order of shares", [("x", "a", 0, 1), ("y", "a", 0, 2), ("young", "b", -9, 3)], {"x", "young"}),
    ("its own queue's older", [("x", "a", 0, 1), ("y", "b", 0, 2), ("z", "b", 9, 3)], {"x", "z"}),
    ("others go before what it passed", [("x", "a", 0, 1), ("z", "a", 9, 3), ("y", "b", 0, 2)], {"y", "z"}),
]


@pytest.mark.parametrize(("jobs", "first"), [case[1:] for case in PRIORITIES], ids=[case[0] for case in PRIORITIES])
def test_priority_orders_the_jobs_of_one_queue(
    jobs: list[tuple[str, str, int, int]], first: set[str], sched: SimpleNamespace
) -> None:
    world = sched.World().feed(sched.node("n", 2), sched.queue("a"), sched.queue("b"))
    world.feed(*[sched.job(name, 1, queue=queue, priority=p, queued=at) for name, queue, p, at in jobs])
    assert world.starts(10).keys() == first


def test_a_reservation_binds_the_younger_of_other_queues_whatever_their_priority(sched: SimpleNamespace) -> None:
    def world(priority: int, queued: float) -> Any:
        return sched.World().feed(
            *(sched.node("a", 4), sched.queue("a", budget=1), sched.queue("b")),
            *(sched.job("r", 2, queue="b", on=["a"]), sched.job("head", 4, queue="a", queued=1)),
            sched.job("one", 1, queue="b", priority=priority, queued=queued),
        )

    assert world(9, 2).starts(400) == {} and world(9, 2).codes("one", 400) == ["BehindReservation"]
    assert world(-9, 0).starts(400) == {"one": ["a"]}


def test_no_reservation_of_lower_priority_holds_back_a_job_without_gpus(sched: SimpleNamespace) -> None:
    """Where guarantees put the queue's jobs with GPUs first."""
    world = sched.World().feed(sched.node("a", 4), sched.queue(gpus=1, cpu="8", guarantee=1), sched.job("r", on=["a"]))
    world.feed(sched.job("old", cpu="6"), sched.job("urgent", 0, cpu="4", priority=5, queued=10))
    assert world.starts(400) == {"urgent": ["a"]}


def test_a_clock_that_steps_back_leaves_every_job_a_reason(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.queue(budget=1), sched.job("r", 2, on=["a"]))
    world.feed(sched.job("head", 4), sched.job("small", 1, queued=1))
    assert world.codes("small", 400) == ["BehindReservation"]
    assert explain(world.state, sched.key("small"), sched.at(100)).summary


def test_reasons_between_the_parts_of_a_drain_pass_over_a_reservation_whose_job_is_gone(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.queue(budget=1), sched.job("r", 2, on=["a"]))
    world.feed(sched.job("head", 4), *(sched.job(f"s{i}", 1, queued=1 + i) for i in range(2)))
    assert world.starts(400) == {} and world.state.plan
    world.state.forget_job(sched.key("head"))
    assert world.starts(400, most=1).keys() == {"s0"} and world.reasons(400)[sched.key("s1")] == ()
    assert world.starts(400).keys() == {"s1"}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were tried to be placed."""
    names: list[str] = []
    fit = decide._fit

    def noted(state: Any, lane: Any, order: Any, *rest: Any) -> Any:
        names.append(order[2].name)
        return fit(state, lane, order, *rest)

    monkeypatch.setattr(decide, "_fit", noted)
    return names


@pytest.mark.parametrize("limited", [False, True], ids=["nodes are kept", "the limit is kept"])
def test_jobs_held_back_are_not_tried_one_by_one(limited: bool, sched: SimpleNamespace, tried: list[str]) -> None:
    """Each is a class of its own."""
    world = sched.World().feed(sched.node("a", 4), sched.queue(gpus=4 if limited else None, budget=100))
    world.feed(*(sched.job(f"r{i}", 1, on=["a"]) for i in range(4)), sched.job("head", 4))
    if limited:
        world.feed(sched.node("b", 4))
    world.feed(*(sched.job(f"s{i}", 1, cpu=f"{i + 1}m", queued=i + 1) for i in range(100)))
    assert world.starts(600) == {} and {*tried} == {"head", *(f"s{i}" for i in range(100))}
    tried.clear()
    for i in range(3):
        world.state.forget_job(sched.key(f"r{i}"))
        assert world.starts(601 + i) == {}
        assert world.codes("s7", 601 + i) == ["BehindReservation"]
    assert len(tried) < 10
    world.state.forget_job(sched.key("head"))
    assert world.starts(604).keys() == {"s0", "s1", "s2"}


def test_who_was_held_back_by_what_is_kept_of_a_limit_starts_once_the_limit_is_gone(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 8), sched.queue(gpus=3, budget=1), sched.job("r", 2, on=["a"]))
    world.feed(sched.job("head", 2), sched.job("small", 1, queued=1))
    assert world.starts(400) == {} and world.codes("small", 400) == ["BehindReservation"]
    world.feed(sched.job("elder", 1, cpu="2", queued=-1))
    assert world.starts(401) == {"elder": ["a"]} and world.codes("small", 401) == ["QueueLimit"]
    assert world.feed(sched.queue(budget=1)).starts(402).keys() == {"head", "small"}


def test_asking_when_one_node_is_free_changes_no_answer_for_others(sched: SimpleNamespace) -> None:
    """What a node is expected to free does not depend on which nodes were asked about before."""

    def waits(first: list[int]) -> list[float]:
        world = sched.World().feed(sched.queue(), sched.node("n0", 2), sched.node("n1", 2))
        for name, began in (("early", 0), ("late", 500)):
            job = sched.job(name, 1, on=["n1"])
            status = job.status.model_copy(update={"started_at": sched.at(began)})
            world.feed(job.model_copy(update={"status": status}))
        slots, found = [world.state.nodes.slots[name] for name in ("n0", "n1")], list[float]()
        for at, asked in ((550, [slots[one] for one in first]), (1200, slots)):
            now_s = sched.at(at).timestamp()
            found = world.state.ends.waits(np.array(asked), np.ones(len(asked), dtype=np.int64), now_s).tolist()
        return found

    assert waits([0]) == waits([1]) == waits([0, 1]) == [650.0, 1200.0]


def test_a_queue_that_goes_first_takes_no_other_queues_places_for_reservations(sched: SimpleNamespace) -> None:
    """Its jobs, more than there are places, want other nodes; from turn to turn they would be there before the gang."""
    objects = [sched.node("x", 8), sched.node("y", 20, model="Tesla T4"), sched.queue("big", budget=100)]
    objects += [sched.queue("many", budget=100), *(sched.job(f"y{i}", 4, queue="big", on=["y"]) for i in range(5))]
    objects += [sched.job("gang", 8, queue="big", models=("A100",)), sched.job("next", 1, queue="big", queued=50)]
    objects += [sched.job(f"t{i}", 1, queue="many", models=("T4",), cpu=f"{i + 1}m", queued=i + 1) for i in range(20)]
    running = [sched.job(f"x{i}", 1, queue="big", on=["x"]) for i in range(8)]
    world = sched.World().feed(*objects, *running)
    assert world.starts(400) == {} and world.state.queues["many"].used < world.state.queues["big"].used
    for i in range(7):
        world.state.forget_job(running[i].key)
        assert world.starts(401 + i) == {}, "what ends on the gang's node stays open"
        again = sched.World().feed(*objects, *running[i + 1 :])
        assert again.starts(401 + i) == {}, "also after a restart"
        reserving = [[one.order[2] for one in each.state.plan] for each in (world, again)]
        assert reserving[0] == reserving[1] and len(reserving[0]) == MAX_RESERVATIONS
    world.state.forget_job(running[7].key)
    assert world.starts(409).keys() == {"gang"}


@pytest.mark.parametrize("holder", ["a", "b", "c"])
def test_places_for_reservations_go_round_by_queue_whichever_goes_first(holder: str, sched: SimpleNamespace) -> None:
    """Each queue's first, then each one's second; the last to those that have waited longest."""
    world = sched.World().feed(*(sched.queue(name, budget=100) for name in "abc"), sched.node("n", 40))
    world.feed(sched.job("r", 40, queue=holder, on=["n"]))
    for name, count in (("a", 12), ("b", 12), ("c", 3)):
        queued = [10 * i + ord(name) for i in range(count)]
        world.feed(*[sched.job(f"{name}{at}", 1, queue=name, cpu=f"{at}m", queued=at) for at in queued])
    world.decide(900)
    assert Counter(one.lane.queue.name for one in world.state.plan) == {"a": 7, "b": 6, "c": 3}
