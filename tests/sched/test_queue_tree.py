"""The order between queues of a tree, against a model that tries every job; what counts; what `why` says."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.sched.decide import decide
from stoker.sched.occupancy import queue_usage
from stoker.sched.wake import ForNodes
from stoker.spec.job import Phase
from stoker.spec.queue import QueueResources, QueueSpec
from stoker.spec.queue_tree import links
from tests.support.examples import examples
from tests.support.preempting import preempting, run, wrote

GPUS, CORES, GIB = 12, 24, 100
LEAVES = ["a", "b", "c", "d"]
INNER = ["top", "mid"]

specs = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([None, None, None, 4, 8]),
        "guarantee": st.sampled_from([None, None, 2, 4, 8]),
        "guaranteed": st.sampled_from([{}, {}, {"cpu": "6"}]),
        "weight": st.integers(1, 3),
        "lately": st.sampled_from([0.0, 0.0, 1.5, 6.0]),
    }
)
trees = st.fixed_dictionaries(
    {name: st.tuples(specs, st.sampled_from([None, "top", "mid"])) for name in LEAVES}
    | {"top": st.tuples(specs, st.none()), "mid": st.tuples(specs, st.sampled_from([None, "top"]))}
)
asks = st.tuples(st.sampled_from(LEAVES), st.sampled_from([0, 1, 1, 2, 3, 5]), st.sampled_from([1, 2]))
rounds = st.lists(
    st.tuples(st.lists(asks, max_size=8), st.integers(0, 2**16), st.sampled_from([None, *LEAVES])),
    min_size=1,
    max_size=4,
)


class Model:
    """All by looking at every job again."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree
        self.placed = links({name: spec_of(*spec) for name, spec in tree.items()})
        self.jobs: dict[str, tuple[str, int, int]] = {}
        self.priorities = Counter[str]()
        self.waiting: list[str] = []
        self.running: list[str] = []

    def path(self, name: str) -> list[str]:
        """From the top."""
        parent = self.placed[name].parent
        return [*(self.path(parent) if parent else []), name]

    def used(self, queue: str) -> tuple[int, int]:
        below = [self.jobs[job] for job in self.running if queue in self.path(self.jobs[job][0])]
        return sum(job[1] for job in below), sum(job[2] for job in below)

    def rank(self, name: str) -> tuple[Any, ...]:
        leaf, gpus, _ = self.jobs[name]
        levels: list[Any] = []
        for queue in self.path(leaf):
            used, weight = self.used(queue), self.tree[queue][0]["weight"]
            named = [
                (have, own and own // (1000 if i else 1))
                for i, (have, own) in enumerate(zip(used, self.placed[queue].guarantee.amounts[:2], strict=True))
            ]
            named = [(have, own) for have, own in named[not gpus :] if own is not None]
            counts = self.placed[queue].guarantee.gpus is not None if gpus else bool(named)
            below = counts and all(have < own for have, own in named)
            share = max(
                (used[0] + self.tree[queue][0]["lately"]) / GPUS,
                used[1] / CORES,
                len([j for j in self.running if queue in self.path(self.jobs[j][0])]) / GIB,
            )
            levels += [not below, share / weight]
        return (*levels, *levels[-2:] * (3 - len(levels) // 2), self.waiting.index(name))

    def fits(self, name: str) -> bool:
        leaf, gpus, cpu = self.jobs[name]
        if any(queue == self.placed[other].parent for queue in [leaf] for other in self.tree):
            return False
        limits = [(self.tree[queue][0]["gpus"], self.used(queue)[0]) for queue in self.path(leaf)]
        held = [self.jobs[job] for job in self.running]
        return (
            all(limit is None or not gpus or used + gpus <= limit for limit, used in limits)
            and sum(job[1] for job in held) + gpus <= GPUS
            and sum(job[2] for job in held) + cpu <= CORES
        )

    def starts(self) -> list[str]:
        """One after the other, the first in order of those that fit. Of a queue's jobs on the same level only those of
        the highest priority are compared with others."""
        found: list[str] = []
        while fitting := [name for name in self.waiting if name not in found and self.fits(name)]:
            heads: dict[Any, str] = {}
            for name in sorted(fitting, key=lambda name: -self.priorities[name]):
                heads.setdefault((self.jobs[name][0], self.rank(name)[:-1]), name)
            first = min(heads.values(), key=self.rank)
            self.running.append(first)
            found.append(first)
        self.waiting = [name for name in self.waiting if name not in found]
        return found


def spec_of(spec: dict[str, Any], parent: str | None) -> QueueSpec:
    guarantee = QueueResources(gpus=spec["guarantee"], **spec["guaranteed"])
    return QueueSpec(parent=parent, limit=QueueResources(gpus=spec["gpus"]), guarantee=guarantee, weight=spec["weight"])


@examples(50, suppress_health_check=[HealthCheck.too_slow])
@given(tree=trees, rounds=rounds)
def test_the_order_is_that_of_a_model_that_tries_every_job(
    tree: dict[str, Any], rounds: list[Any], sched: SimpleNamespace
) -> None:
    model, world = Model(tree), sched.World()
    world.feed(sched.node("n", GPUS, cpu=CORES, memory=GIB))
    for name, (spec, parent) in tree.items():
        world.feed(sched.queue(name, parent=parent, **spec))
    made: dict[str, Any] = {}
    for number, (new, ends, gone) in enumerate(rounds):
        for leaf, gpus, cpu in new:
            name = f"j{len(made):03}"
            # Reclaim is another matter: tests/sched/test_reclaim.py.
            made[name] = sched.job(name, gpus, queue=leaf, cpu=str(cpu), queued=len(made), preemptible=False)
            model.jobs[name] = (leaf, gpus, cpu)
            model.waiting.append(name)
            world.feed(made[name])
        starts = decide(world.state, sched.at(100 + number)).starts
        assert [start.key.name for start in starts] == model.starts()
        for start in starts:
            made[start.key.name] = changed(made[start.key.name], phase=Phase.RUNNING, placement=start.placement)
            world.feed(made[start.key.name])
        over = [name for i, name in enumerate(list(model.running)) if ends >> i & 1]
        for name in over:
            model.running.remove(name)
            world.feed(changed(made[name], phase=Phase.SUCCEEDED, placement=()))
        if gone is not None:
            spec, _ = tree[gone]
            model.tree = tree = tree | {gone: (spec, None)}
            model.placed = links({name: spec_of(*one) for name, one in tree.items()})
            world.feed(sched.queue(gone, **spec))
        assert set(world.state.tree.guaranteed) == {
            n for n, link in model.placed.items() if link.guarantee != QueueResources()
        }
        for name in tree:
            gpus, cores = model.used(name)
            usage = queue_usage(world.state, name)
            assert (usage.gpus, usage.cpu_milli) == (gpus, cores * 1000)


def changed(job: Any, **status: Any) -> Any:
    meta = job.metadata.model_copy(update={"resource_version": str(int(job.metadata.resource_version) + 1)})
    return job.model_copy(update={"metadata": meta, "status": job.status.model_copy(update=status)})


@pytest.mark.parametrize(
    ("top", "low", "other", "problem"),
    [
        (8, 4, 4, None),
        (
            8,
            5,
            4,
            "guarantees come to more than the 8 GPUs of the queue above (top → mid): 5 GPUs (low) + 4 GPUs (other); ",
        ),
        (None, 1, None, "guarantees come to more than the 0 GPUs of the queue above (top → mid): 1 GPUs (low); "),
    ],
)
def test_guarantees_above_the_parents_count_for_nothing(
    top: int | None, low: int, other: int | None, problem: str | None
) -> None:
    def spec(gpus: int | None, parent: str | None = None) -> QueueSpec:
        return QueueSpec(parent=parent, guarantee=QueueResources(gpus=gpus))

    found = links({"top": spec(top), "mid": spec(top, "top"), "low": spec(low, "mid"), "other": spec(other, "mid")})
    assert found["top"].problem == "" and bool(found["low"].problem) == bool(problem)
    assert found["low"].problem.startswith(problem or "")
    assert found["low"].guarantee.gpus == (low if problem is None else None)


def test_of_many_queues_those_behind_the_one_that_takes_what_got_free_are_not_looked_through(
    sched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, searched = sched.World().feed(sched.node("n", 20, cpu=100)), list[bool]()
    for i in range(20):
        world.feed(sched.queue(f"q{i}"), sched.job(f"r{i}", queue=f"q{i}", on=["n"], cpu=f"{1000 + i}m"))
        world.feed(*(sched.job(f"p{i}-{n}", queue=f"q{i}", priority=n, queued=i) for n in range(3)))
    assert world.starts(100) == {}
    first = ForNodes.first

    def noted(self: ForNodes, begin: Any) -> Any:
        searched.append(bool(self._rows.beside()))
        return first(self, begin)

    monkeypatch.setattr(ForNodes, "first", noted)
    monkeypatch.setattr(ForNodes, "youngest", lambda self, priority: pytest.fail("queues differ in their shares"))
    world.state.forget_job(sched.key("r7"))
    assert world.starts(101).keys() == {"p7-2"}
    assert sum(searched) <= 3


def test_a_younger_job_of_higher_priority_holds_back_its_queue_though_it_found_room_only_before(
    sched: SimpleNamespace,
) -> None:
    """Of queues with equal shares: for its sake `low` comes after `other`, which leaves it no room."""
    world = sched.World().feed(sched.node("n", 4), *map(sched.queue, ["q", "first", "other", "all"]))
    world.feed(sched.job("all", 4, queue="all", on=["n"]), sched.job("low", queue="q"))
    world.feed(sched.job("gang", 3, workers=2, queue="q", priority=1, queued=2))
    world.feed(sched.job("high", 4, queue="q", priority=1, queued=4))
    world.feed(sched.job("first", queue="first", queued=1), sched.job("other", 3, queue="other", queued=3))
    assert world.starts(50) == {}
    world.state.forget_job(sched.key("all"))
    assert list(world.starts(51)) == ["first", "other"]


small = st.tuples(st.sampled_from(["a", "a", "b", "c"]), st.sampled_from([0, 0, 1]), st.just(1))


@examples(50)
@given(tree=trees, asks=st.lists(st.tuples(small, st.integers(0, 2)), min_size=4, max_size=12))
def test_priority_decides_between_jobs_of_one_queue_on_the_same_level_with_gpus_or_without(
    tree: dict[str, Any], asks: list[Any], sched: SimpleNamespace
) -> None:
    """All fit: what waits in vain is not the model's."""
    tree = {name: (spec | {"gpus": None, "lately": 0.0}, parent) for name, (spec, parent) in tree.items()}
    model, world = Model(tree), sched.World().feed(sched.node("n", GPUS, cpu=CORES, memory=GIB))
    for name, (spec, parent) in tree.items():
        world.feed(sched.queue(name, parent=parent, **spec))
    for number, ((leaf, gpus, cpu), priority) in enumerate(asks):
        name = f"j{number:03}"
        model.jobs[name], model.priorities[name] = (leaf, gpus, cpu), priority
        model.waiting.append(name)
        world.feed(sched.job(name, gpus, queue=leaf, cpu=str(cpu), queued=number, priority=priority))
    assert list(world.starts(100)) == model.starts()


@pytest.mark.parametrize(
    ("guaranteed", "order"),
    [({}, ["other", "high", "low"]), ({"cpu": "6"}, ["low", "other", "high"])],
    ids=["on the same level", "below the guarantee of cores"],
)
@pytest.mark.parametrize("parent", [None, "top"])
def test_priority_decides_between_jobs_with_and_without_gpus_of_a_guaranteed_queue(
    parent: str | None, guaranteed: dict[str, str], order: list[str], sched: SimpleNamespace
) -> None:
    """Of `own`, which holds the GPU that it is guaranteed. `other` holds as much: there the wait decides."""
    guarantee = {"guarantee": 1, "guaranteed": guaranteed}
    world = sched.World().feed(sched.node("n", 8), sched.queue("own", parent=parent, **guarantee), sched.queue("other"))
    world.feed(sched.queue("top", **guarantee), *(sched.job(f"r-{q}", queue=q, on=["n"]) for q in ("own", "other")))
    world.feed(sched.job("low", 0, queue="own"), sched.job("other", queue="other", queued=1))
    world.feed(sched.job("high", queue="own", priority=5, queued=2))
    assert list(world.starts(9)) == order


def test_a_reservation_holds_up_no_queue_that_goes_first(sched: SimpleNamespace) -> None:
    for guarantee, starts in ((None, {}), (2, {"own": ["a"]})):
        world = sched.World().feed(
            *(sched.node("a", 5), sched.queue("lent", budget=1), sched.queue("owner", guarantee=guarantee)),
            *(sched.job("r", 1, queue="lent", on=["a"]), sched.job("head", 4, queue="lent", queued=1)),
            *(sched.job("mine", 1, queue="owner", on=["a"]), sched.job("own", 1, queue="owner", queued=2)),
        )
        assert world.starts(400) == starts


def test_why_says_whose_guarantee_is_lent_and_to_which_queue(sched: SimpleNamespace) -> None:
    world = sched.World().feed(
        *(sched.node("a", 8), sched.queue("owner", guarantee=4), sched.queue("mean", guarantee=1), sched.queue("free")),
        *(sched.job(f"r{n}", g, queue=q, on=["a"], preemptible=False) for n, g, q in ((1, 4, "mean"), (2, 3, "free"))),
        *(
            sched.job("r3", 1, queue="owner", on=["a"]),
            sched.job("x", 3, queue="owner"),
            sched.job("y", 4, queue="owner"),
        ),
    )
    assert world.codes("x") == ["NoCapacity", "GuaranteeLent"]
    lent = world.reasons()[sched.key("x")][1]
    assert (lent.resource, lent.queue, lent.short, lent.of) == ("gpus", "owner", 3, 4)
    assert lent.borrowed == {"free": 3, "mean": 3}
    assert lent.message == (
        "queue 'owner' holds 1 of 4 GPUs guaranteed to it; others hold 3 GPUs more than theirs in 'free' and 3 GPUs "
        "more than theirs in 'mean'; no job there may be stopped"
    )
    assert world.codes("y") == ["NoCapacity"], "it would borrow itself"


@pytest.mark.parametrize(
    ("guarantee", "now", "says"),
    [
        ({}, 1000, "; no job there may be stopped before 2026-11-21 10:30:00 UTC"),
        ({}, 1900, "; jobs there that may be stopped hold 2 GPUs"),
        ({"cpu": "2"}, 1900, None),  # it would hold more cores than that
        ({"gpu_types": {"a100": 1}}, 1900, None),
    ],
)
def test_why_says_what_may_be_stopped_for_a_guarantee(
    guarantee: dict[str, Any], now: float, says: str | None, sched: SimpleNamespace
) -> None:
    world = sched.World().feed(sched.node("a", 7), sched.queue("owner", guarantee=4, guaranteed=guarantee))
    world.feed(preempting(sched.queue("free"), "30m"), sched.job("x", 4, queue="owner", cpu="4"))
    for name, more in (("old", {}), ("young", {"since": 900}), ("fixed", {"preemptible": False})):
        world.feed(wrote(run(sched, name, "a", gpus=2, queue="free", **more), gpu_type="a100"))
    assert world.starts(now) == {}
    lent = [one.message for one in world.reasons(now)[sched.key("x")] if one.code == "GuaranteeLent"]
    assert lent == ([] if says is None else [LENT + says])


@pytest.mark.parametrize(
    ("now", "jobs", "once", "at"),
    [
        (600, "old and young", "each has", "the first at 2026-11-21 10:30:00 UTC"),
        (1900, "young", "it has", "at 2026-11-21 10:40:00 UTC"),
        (2500, "", "", ""),
    ],
)
def test_why_says_when_jobs_of_lower_priority_may_be_stopped(
    now: float, jobs: str, once: str, at: str, sched: SimpleNamespace
) -> None:
    world = sched.World().feed(sched.node("a", 8), preempting(sched.queue(), "30m"), sched.job("x", 8, priority=2))
    kinds = {"old": {}, "young": {"since": 600}, "fixed": {"preemptible": False}, "equal": {"priority": 2}}
    world.feed(*(run(sched, name, "a", gpus=2, **more) for name, more in kinds.items()))
    assert world.starts(now) == {}
    found = [one.message for one in world.reasons(now)[sched.key("x")] if one.code == "MinRuntime"]
    may = f"{jobs}, of lower priority, may be stopped for it"
    assert found == ([f"{may} once {once} run for 30m (minRuntime of queue 'default'): {at}"] if jobs else [])


LENT = "queue 'owner' holds 0 of 4 GPUs guaranteed to it; others hold 6 GPUs more than theirs in 'free'"


def test_a_queue_is_limited_as_long_as_it_or_one_above_has_a_limit(sched: SimpleNamespace) -> None:
    world = sched.World()

    def limited(*queues: Any) -> list[str]:
        world.feed(*queues)
        return [name for name in ("top", "middle", "leaf") if world.state.tree.named(name).is_limited]

    top, middle, leaf = (sched.queue("top"), sched.queue("middle", parent="top"), sched.queue("leaf", parent="middle"))
    assert limited(top, middle, leaf) == []
    assert limited(sched.queue("top", gpus=1)) == ["top", "middle", "leaf"]
    assert limited(sched.queue("leaf")) == ["top", "middle"], "it has no parent any more"
    assert limited(leaf) == ["top", "middle", "leaf"]
    assert limited(top) == []
    assert limited(sched.queue("middle", parent="top", types={"h100": 1})) == ["middle", "leaf"]
    world.state.forget_queue("middle")
    assert limited() == []
