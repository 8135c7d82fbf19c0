"""Preemption within a queue: who is stopped for whom, what is kept for it, and when that ends."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.sched import victims
from stoker.sched.decide import Decisions
from stoker.sched.entries import Entry
from stoker.sched.place import place
from stoker.sched.preempt import cost_of
from stoker.spec.job import AttemptEnd, Claim, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.outcome import Intent
from stoker.spec.queue import Preemption, Queue, WithinQueue
from stoker.spec.worker import Checkpoint, Progress


def preempting(queue: Queue, least: str | None = None) -> Queue:
    how = Preemption(within_queue=WithinQueue.LOWER_PRIORITY, min_runtime=least)
    return queue.model_copy(update={"spec": queue.spec.model_copy(update={"preemption": how})})


def run(
    sched: SimpleNamespace,
    name: str,
    *on: str,
    gpus: int = 1,
    since: float = 0,
    saved: float | None = None,
    **more: Any,
) -> TrainingJob:
    """A job that runs since then, and saved at that time."""
    job: TrainingJob = sched.job(name, gpus, workers=len(on), on=on, attempt=1, **more)
    saved_at = None if saved is None else Checkpoint(step=1, at=sched.at(saved).timestamp())
    status = job.status.model_copy(
        update={
            "started_at": sched.at(since),
            "placed_at": sched.at(since),
            "progress": Progress(at=0, checkpoint=saved_at),
        }
    )
    return job.model_copy(update={"status": status})


def wrote(job: TrainingJob, version: int = 2, **status: Any) -> TrainingJob:
    meta = job.metadata.model_copy(update={"resource_version": str(version)})
    return job.model_copy(update={"metadata": meta, "status": job.status.model_copy(update=status)})


def claims(decisions: Decisions) -> dict[str, list[str] | None]:
    """Job → its victims; None: its claim has ended."""
    return {
        one.key.name: None if one.claim is None else [victim.name for victim in one.claim.victims]
        for one in decisions.claims
    }


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
        "nobody of the same or a higher priority",
        lambda s: [s.node("a", 2), run(s, "u", "a", priority=1), run(s, "v", "a", priority=2), s.job("x", priority=1)],
        {},
    ),
    (
        "nobody that is not preemptible",
        lambda s: [s.node("a", 2), run(s, "u", "a", gpus=2, preemptible=False), s.job("x", priority=1)],
        {},
    ),
    (
        "nobody for a job that would not start then",
        lambda s: [s.node("a", 2), run(s, "u", "a"), run(s, "v", "a", preemptible=False), s.job("x", 2, priority=1)],
        {},
    ),
    (
        "what is free counts, and nobody is stopped beyond need",
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


def preempted(sched: SimpleNamespace, *more: Any) -> Any:
    """x has u and v stopped on node a."""
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2), *more)
    world.running = [run(sched, name, "a", since=50) for name in "uv"]
    world.feed(*world.running, sched.job("x", 2, priority=1))
    (change,) = world.decide(100).claims
    world.x = wrote(sched.job("x", 2, priority=1), claim=change.claim)
    return world.feed(world.x)


def test_the_room_is_kept_until_every_victim_has_gone_and_then_the_job_starts_there(sched: SimpleNamespace) -> None:
    world = preempted(sched, sched.queue("other"))
    world.feed(sched.job("small", queue="other"), sched.job("top", priority=9))
    u, v = world.running
    pods = [sched.pod(one, on="a", going=True) for one in (u, v)]
    world.feed(*pods)
    for one in (u, v):
        stopping = wrote(one, phase=Phase.STOPPING, intent=Intent.PREEMPT)
        world.feed(stopping)
        assert world.starts(101) == {}
        world.feed(wrote(stopping, 3, phase=Phase.QUEUED, intent=Intent.NONE, placement=()))
        assert world.starts(102) == {}, "its pod is still there"
    for pod in pods:
        assert world.starts(103) == {}, "neither the claimant nor another in half of its room"
        world.state.forget_pod(pod.key)
    assert world.starts(104) == {"x": ["a"]}
    assert world.state.queue_usage("default").gpus == 2


def test_a_new_leader_comes_to_the_same_from_the_objects(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    again = sched.World().feed(world.x, *world.running, sched.node("a", 2), preempting(sched.queue()))
    assert claims(again.decide(101)) == {}
    assert again.starts(101) == {}
    assert again.state.victims == world.state.victims
    assert again.reasons(101)[sched.key("x")][0].code == "Preempting"


def test_what_is_held_for_a_claim_does_not_count_as_used(sched: SimpleNamespace) -> None:
    state = preempted(sched).state
    usage = state.queue_usage("default")
    assert (usage.gpus, usage.running, usage.pending) == (2, 2, 1)
    room = state.node_room("a")
    assert (room.free_gpus, [key.name for key in room.jobs]) == (0, ["u", "v"])


def test_a_better_place_ends_a_claim(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    world.feed(sched.node("b", 2))
    assert world.starts(101) == {"x": ["b"]}
    assert world.state.victims == {}


@pytest.mark.parametrize("change", [{"suspend": True}, {"cancel": True}])
def test_a_claim_ends_with_what_it_is_for(change: dict[str, bool], sched: SimpleNamespace) -> None:
    world = preempted(sched)
    spec = world.x.spec.model_copy(update=change)
    world.feed(wrote(world.x.model_copy(update={"spec": spec}), 3))
    assert not world.state.claims and not world.state.victims


def test_victims_that_do_not_end_end_the_claim(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    u, v = world.running
    world.feed(*(wrote(one, phase=Phase.STOPPING, intent=Intent.PREEMPT) for one in (u, v)))
    until = world.decide(101).wake_at
    assert until == sched.at(100 + 300 + 30), "five minutes, and the grace that they have to save"
    ended = wrote(u, 3, phase=Phase.QUEUED, placement=(), attempts=(_end(sched, 200),))
    world.feed(ended)
    assert claims(world.decide(430)) == {}, "one ended: that is progress"
    assert claims(world.decide(200 + 330)) == {"x": None}


def _end(sched: SimpleNamespace, at: float) -> Any:
    return AttemptEnd(number=1, ended_at=sched.at(at), intent=Intent.PREEMPT)


def test_room_that_others_take_voids_the_claim_and_it_is_planned_anew(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    _, v = world.running
    world.feed(sched.node("b", 2), *(run(sched, name, "b", priority=p) for name, p in (("w", 0), ("hi", 5))))
    assert claims(world.decide(101)) == {}
    world.feed(wrote(v, phase=Phase.QUEUED, placement=()), sched.other("them/pod", "a", 1))
    decided = world.decide(102)
    assert claims(decided) == {"x": None} and decided.claims[0].voided
    world.feed(wrote(run(sched, "hi", "b", priority=5), phase=Phase.SUCCEEDED, placement=()))
    (change,) = world.decide(103).claims
    assert change.claim is not None and [one.name for one in change.claim.victims] == ["w"]


def test_a_claim_voided_and_planned_at_once_counts(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    world.feed(sched.node("b", 2, cpu=2), run(sched, "w", "b", gpus=2))
    world.decide(101)
    world.feed(sched.other("them/pod", "a", 1))
    (change,) = world.decide(102).claims
    assert isinstance(change.claim, Claim) and change.claim.replans == 1
    world.feed(wrote(world.x, 3, claim=change.claim))
    assert "planned anew 1x" in world.reasons(102)[sched.key("x")][0].message


# -- reclaim


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


# -- against brute force

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
    }
)


@pytest.mark.parametrize("exact", [True, False])
@settings(max_examples=120, deadline=None)
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
    table: list[GPUNode] = [sched.node(name, gpus, cpu=cpu) for name, (gpus, cpu) in zip(names, cluster, strict=True)]
    world = sched.World().feed(preempting(sched.queue(gpus=limit)), *table)
    for number, one in enumerate(running):
        on = [names[i % len(names)] for i in one["on"]]
        rest = {name: one[name] for name in ("gpus", "since", "priority", "preemptible", "cpu", "models")}
        world.feed(run(sched, f"r{number}", *on, **rest))
    state = world.state
    x = sched.job("x", asked["gpus"], **{k: v for k, v in asked.items() if k != "gpus"}, priority=1)
    world.feed(x)
    (entry,) = [one for one in state.entries.values() if one.key.name == "x"]
    may = [one for one in state.entries.values() if one.order[0] > -1 and one.job.spec.preemptible and one is not entry]

    def starts(without: tuple[Entry, ...]) -> bool:
        with state.what_if():
            for victim in without:
                state.vacate(victim.key)
            room = entry.queue.has_room(entry.request.totals)
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
        assert not found and (mixed or not solved), "whoever can start by preemption does"
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


# -- over time


class Life:
    """A cluster of preempting queues: starts and claims are observed as written, victims take their time to end."""

    def __init__(self, sched: SimpleNamespace, seed: int) -> None:
        self.sched, self.rng, self.now, self.made = sched, random.Random(seed), 0.0, 0
        self.world = sched.World().feed(
            preempting(sched.queue("q")), preempting(sched.queue("r", gpus=5)), *(sched.node(name, 4) for name in "ab")
        )
        self.jobs: dict[str, TrainingJob] = {}
        self.others: list[str] = []

    def put(self, job: TrainingJob, **status: Any) -> None:
        self.made += 1
        self.jobs[job.metadata.name] = wrote(job, self.made, **status)
        self.world.feed(self.jobs[job.metadata.name])

    def holding(self) -> list[TrainingJob]:
        return [job for job in self.jobs.values() if job.status.placement]

    def free(self) -> dict[str, int]:
        """What jobs and others leave of each node; claims are not counted."""
        free = dict.fromkeys("ab", 4)
        for job in self.holding():
            for placed in job.status.placement:
                free[placed.node] -= job.spec.gpus_per_worker
        for name in self.others:
            free[name[-1]] -= 1
        return free

    def step(self) -> None:
        rng, sched = self.rng, self.sched
        self.now += rng.choice([0, 1, 30])
        what = rng.choice(["submit", "submit", "end", "stop", "stop", "other"])
        running = sorted(self.holding(), key=lambda job: job.metadata.name)
        if what == "submit":
            asked = {"workers": rng.choice([1, 1, 2]), "queue": rng.choice("qr"), "priority": rng.choice([0, 0, 1, 2])}
            name = f"j{self.made}"
            self.put(sched.job(name, rng.choice([1, 2, 4]), queued=self.now, **asked))
        elif what == "end" and running:
            self.put(rng.choice(running), phase=Phase.SUCCEEDED, placement=(), claim=None)
        elif what == "stop":
            stopped = [job for job in running if job.key in self.world.state.victims]
            for job in stopped[: rng.choice([1, 2])]:
                ended = AttemptEnd(number=job.status.attempt, ended_at=sched.at(self.now), intent=Intent.PREEMPT)
                self.put(job, phase=Phase.QUEUED, placement=(), started_at=None, attempts=(ended,))
        elif what == "other":
            if self.others and rng.random() < 0.5:
                self.world.state.forget_other(Key("x", self.others.pop()))
            elif rng.random() < 0.2 and (node := rng.choice("ab")) and self.free()[node] > 0:
                self.others.append(f"o{self.made}{node}")
                self.world.feed(sched.other(f"x/o{self.made}{node}", node, 1))

    def decide(self) -> None:
        decided = self.world.decide(self.now)
        for change in decided.claims:
            self.put(self.jobs[change.key.name], claim=change.claim)
        for start in decided.starts:
            job = self.jobs[start.key.name]
            self.put(
                job,
                phase=Phase.RUNNING,
                placement=start.placement,
                attempt=job.status.attempt + 1,
                started_at=self.sched.at(self.now),
                placed_at=self.sched.at(self.now),
                claim=None,
            )

    def check(self) -> None:
        free = self.free()
        assert min(free.values()) >= 0, "a GPU twice"
        used = sum(job.spec.total_gpus for job in self.holding() if job.spec.queue == "r")
        assert used <= 5, "beyond the limit"
        for job in self.jobs.values():
            claim = job.status.claim
            if claim is None or job.key not in self.world.state.claims:
                continue
            stopped = [self.jobs[one.name] for one in claim.victims]
            assert all(one.spec.queue == job.spec.queue and one.spec.priority < job.spec.priority for one in stopped)
            going = [one for one in self.holding() if one.key in self.world.state.victims]
            for one in going:
                for placed in one.status.placement:
                    free[placed.node] += one.spec.gpus_per_worker * (one.status.claim is None)
            for placed in claim.placement:
                assert free[placed.node] >= job.spec.gpus_per_worker, "its room was given away"
            for one in going:
                for placed in one.status.placement:
                    free[placed.node] -= one.spec.gpus_per_worker


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_gpu_twice_no_room_stolen_and_every_claim_becomes_a_start(seed: int, sched: SimpleNamespace) -> None:
    life = Life(sched, seed)
    for _ in range(60):
        life.step()
        before = sched.fingerprint(life.world.state)
        with life.world.state.what_if():
            life.world.decide(life.now)
        assert sched.fingerprint(life.world.state) == before
        life.decide()
        life.check()
        again = sched.World().feed(*(life.world.state.queues[name].queue for name in "qr"))
        again.feed(*(sched.node(name, 4) for name in "ab"), *life.jobs.values())
        again.feed(*(sched.other(f"x/{name}", name[-1], 1) for name in life.others))
        assert again.state.claims.keys() == life.world.state.claims.keys(), "from the objects alone"
        assert again.state.nodes.free_gpu.sum() == life.world.state.nodes.free_gpu.sum()
    for name in life.others:
        life.world.state.forget_other(Key("x", name))
    life.others.clear()
    waiting = {job.metadata.name for job in life.jobs.values() if job.status.claim is not None}
    for _ in range(20):
        for job in [one for one in life.holding() if one.key in life.world.state.victims]:
            ended = AttemptEnd(number=job.status.attempt, ended_at=sched.at(life.now), intent=Intent.PREEMPT)
            life.put(job, phase=Phase.QUEUED, placement=(), started_at=None, attempts=(ended,))
        life.decide()
        waiting -= {job.metadata.name for job in life.holding()}
    assert not waiting
