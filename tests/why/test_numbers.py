"""Every number of `stoker why` against brute force: small clusters at random, each amount worked out the slow way."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.decide import decide
from stoker.spec.reasons import Change, Code, Reason
from stoker.why.explain import explain
from stoker.why.preemption_risk import warnings_at_submit
from tests.support.examples import examples


class Cluster:
    """Nodes with GPUs and cores, two queues below one and one beside it, running jobs, one that waits."""

    def __init__(self, seed: int, sched: SimpleNamespace) -> None:
        rng = random.Random(seed)
        self.nodes = {f"n{i}": (rng.choice([2, 4]), rng.choice([4, 8])) for i in range(3)}
        self.limits = {name: rng.choice([None, None, 2, 3, 5]) for name in ("q", "r", "top")}
        top = rng.choice([None, 4, 6])
        self.guarantees = {"top": top, "q": None if top is None else rng.choice([2, 4]), "r": None, "x": None}
        self.parents = {"q": "top", "r": "top", "top": None, "x": None}
        self.running = {
            f"j{i}": (rng.choice([0, 1, 1, 2]), rng.choice([1, 2]), rng.choice("qrx"), rng.choice(list(self.nodes)))
            for i in range(rng.randint(2, 7))
        }
        self.gpus, self.cpu, self.workers = rng.choice([1, 1, 2]), rng.choice([1, 1, 3]), rng.choice([1, 2, 3, 4])
        self.objects = [
            *(sched.node(name, gpus, cpu=cpu) for name, (gpus, cpu) in self.nodes.items()),
            *(
                sched.queue(name, gpus=self.limits.get(name), guarantee=self.guarantees[name], parent=parent)
                for name, parent in self.parents.items()
            ),
            *(
                sched.job(name, gpus, cpu=str(cpu), queue=queue, on=[node], preemptible=False)
                for name, (gpus, cpu, queue, node) in self.running.items()
            ),
            sched.job("w", self.gpus, workers=self.workers, cpu=str(self.cpu), queue="q"),
        ]

    def free(self, name: str) -> tuple[int, int]:
        there = [(gpus, cpu) for gpus, cpu, _, node in self.running.values() if node == name]
        have = self.nodes[name]
        return have[0] - sum(gpus for gpus, _ in there), have[1] - sum(cpu for _, cpu in there)

    def held(self, queue: str) -> int:
        below = [name for name, parent in self.parents.items() if queue in (name, parent)]
        return sum(gpus for gpus, _, of, _ in self.running.values() if of in below)

    def fits(self, name: str) -> int:
        """Workers on the empty node."""
        return min(self.nodes[name][0] // self.gpus, self.nodes[name][1] // self.cpu)

    def short_of(self, need: int, at: int, most: list[int]) -> int:
        """The least of a resource that must get free for all workers to fit, at most so many on each node: every way
        to spread them is tried."""
        free = [self.free(name)[at] for name in self.nodes]
        return min(
            sum(max(count * need - some, 0) for count, some in zip(counts, free, strict=True) if count)
            for counts in product(*(range(one + 1) for one in most))
            if sum(counts) == self.workers
        )


@examples(150)
@given(seed=st.integers(0, 2**32))
def test_every_number_is_that_of_brute_force(seed: int, sched: SimpleNamespace) -> None:
    world = Cluster(seed, sched)
    state = sched.World().feed(*world.objects).state
    said = explain(state, sched.key("w"), sched.at(10))
    found = [(one.code, one.resource, one.queue, one.short, one.of) for one in said.blockers]
    if said.summary.startswith("can start now"):
        assert not found and not said.hints
        return
    asked = world.gpus * world.workers
    never = {(Code.NEVER_FITS, "gpus", name, asked - limit, asked) for name, limit in limits(world) if asked > limit}
    whole = [world.fits(name) for name in world.nodes]
    if never or sum(whole) < world.workers:
        here = {one for one in found if one[2] is not None}
        assert here == never and {one[0] for one in found} == {Code.NEVER_FITS}
        assert (sum(whole) < world.workers) == any(one[2] is None for one in found)
        return
    expected: list[Any] = [
        (Code.QUEUE_LIMIT, "gpus", name, world.held(name) + asked - limit, asked)
        for name, limit in limits(world)
        if world.held(name) + asked > limit
    ]
    free = {name: world.free(name) for name in world.nodes}
    by_gpus = [min(most, max(free[name][0], 0) // world.gpus) for name, most in zip(world.nodes, whole, strict=True)]
    base = by_gpus if sum(by_gpus) >= world.workers else whole
    by_cpu = [min(most, max(free[name][1], 0) // world.cpu) for name, most in zip(world.nodes, base, strict=True)]
    capacity: list[Any] = []
    if sum(by_gpus) < world.workers:
        capacity.append((Code.NO_CAPACITY, "gpus", None, world.short_of(world.gpus, 0, whole), asked))
    if sum(by_cpu) < world.workers:
        cores = world.cpu * world.workers
        capacity.append((Code.NO_CAPACITY, "cpu", None, world.short_of(world.cpu, 1, base), cores))
    expected += capacity
    lent = [
        (Code.GUARANTEE_LENT, "gpus", name, guarantee - world.held(name), guarantee)
        for name in ("q", "top")
        if capacity and (guarantee := world.guarantees[name]) is not None and world.held(name) + asked <= guarantee
    ]
    assert found == [*expected, *lent]
    for one in said.blockers:
        check_names(world, one)
    assert {level.name: level.held["gpus"] for level in said.queues} == {n: world.held(n) for n in ("q", "top")}
    for hint in said.hints:
        check_most(world, hint, sched)


def limits(world: Cluster) -> list[tuple[str, int]]:
    return [(name, limit) for name in ("q", "top") if (limit := world.limits[name]) is not None]


def check_names(world: Cluster, one: Reason) -> None:
    below = [name for name, parent in world.parents.items() if one.queue in (name, parent)]
    if one.code is Code.QUEUE_LIMIT:
        assert set(one.jobs) == {
            f"default/{name}" for name, (gpus, _, of, _) in world.running.items() if gpus and of in below
        }
    if one.code is Code.GUARANTEE_LENT:
        beside = [name for name, parent in world.parents.items() if parent == world.parents[str(one.queue)]]
        over = {name: world.held(name) - (world.guarantees[name] or 0) for name in beside if name != one.queue}
        assert one.borrowed == {name: some for name, some in over.items() if some > 0}


def check_most(world: Cluster, hint: Reason, sched: SimpleNamespace) -> None:
    """A number of workers, or of GPUs each, is the most; a limit the least: one more, or less, does not start."""
    job = {"gpus": world.gpus, "workers": world.workers}
    objects = world.objects[:-1]
    if hint.change is Change.WORKERS:
        job["workers"] = hint.value + 1
    elif hint.change is Change.GPUS_PER_WORKER:
        job["gpus"] = hint.value + 1
    elif hint.change is Change.LIMIT_GPUS:
        name = str(hint.queue)
        less = sched.queue(name, gpus=hint.value - 1, guarantee=world.guarantees[name], parent=world.parents[name])
        objects = [less if getattr(one.metadata, "name", "") == name else one for one in objects]
    else:
        return
    fed = sched.World().feed(*objects, sched.job("w", **job, cpu=str(world.cpu), queue="q"))
    assert "w" not in fed.starts(10), hint


class Counted(dict[Any, Any]):
    """Counts what is looked up; walking it whole is an error."""

    looked_up = 0

    def __getitem__(self, key: Any) -> Any:
        self.looked_up += 1
        return super().__getitem__(key)

    def _walked(self, *_: Any) -> Any:
        raise AssertionError("walked whole")

    __iter__ = values = items = keys = _walked  # type: ignore[assignment]


def test_holders_are_found_without_a_look_at_all_that_runs(sched: SimpleNamespace) -> None:
    """A queue at its limit of GPUs in which far more jobs run that hold none."""
    world = sched.World().feed(sched.node("a", 8, cpu=10_000, memory=10_000), sched.queue(gpus=1, cpu=1501))
    world.feed(*(sched.job(f"c{i}", 0, on=["a"]) for i in range(1500)), sched.job("g", 1, on=["a"]), sched.job("w", 1))
    world.decide(10)
    reasons = world.reasons(10)
    world.state.entries = Counted(world.state.entries)
    by_gpus, by_cpu = (one for one in reasons[sched.key("w")] if one.code is Code.QUEUE_LIMIT)
    assert (by_gpus.short, by_gpus.of, by_gpus.jobs) == (1, 1, ("default/g",))
    assert (by_cpu.short, by_cpu.of, len(by_cpu.jobs)) == (1, 1, 20)
    assert world.state.entries.looked_up < 100


def test_a_warning_at_submit_walks_no_queues(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 8), *(sched.queue(f"q{i}", guarantee=i % 2) for i in range(10)))
    world.state.queues = Counted(world.state.queues)
    assert warnings_at_submit(world.state, sched.job("w", 1, queue="q0"))


def test_other_queues_are_tried_only_where_nodes_have_room(
    sched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def counted(*given: Any, **more: Any) -> Any:
        tried.append(given)
        return decide(*given, **more)

    monkeypatch.setattr("stoker.why.counterfactuals.decide", counted)
    queues = [sched.queue(gpus=4), *(sched.queue(f"q{i}") for i in range(9))]
    full = [sched.node("a", 4), *queues, sched.job("r", 4, on=["a"]), sched.job("w", 1)]
    assert explain(sched.World().feed(*full).state, sched.key("w"), sched.at(10)).hints == () and not tried
    beside = explain(sched.World().feed(*full, sched.node("b", 4)).state, sched.key("w"), sched.at(10))
    assert [hint.change for hint in beside.hints] == ["queue", "queue", "queue", "queue.limit.gpus"]
    assert len(tried) == 4
