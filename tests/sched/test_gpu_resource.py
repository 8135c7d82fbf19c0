"""Slices and shared GPUs: asked for by their resource, counted by it, and never several of them to one gang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from stoker.sched.occupancy import node_room
from stoker.spec.job import Phase
from stoker.spec.meta import Key
from stoker.spec.names import GPU_RESOURCE
from stoker.why.capacity_reasons import never_on_nodes
from tests.support.examples import examples
from tests.support.preempting import claims, run, wrote

SLICE, SHARED = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"


def test_each_goes_where_its_resource_is_and_waits_for_that_alone(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("whole", 2), sched.node("sliced", 1, parts={SLICE: 2}))
    world.feed(*(sched.job(f"s{i}", resource=SLICE, queued=i) for i in range(3)))
    world.feed(*(sched.job(f"g{i}", queued=3 + i) for i in range(4)))
    assert world.starts() == {"s0": ["sliced"], "s1": ["sliced"], "g0": ["sliced"], "g1": ["whole"], "g2": ["whole"]}
    said = [one.message for one in world.reasons(60)[sched.key("s2")]]
    assert any("1 GPU offered as nvidia.com/mig-1g.10gb" in one for one in said), said


def test_nothing_offers_it(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 8), sched.job("s", resource=SLICE))
    assert world.starts() == {}
    [reason] = world.reasons()[sched.key("s")]
    assert (str(reason.code), reason.message) == (
        "NoCapacity",
        "the nodes that are usable now would hold 0 of 1 worker of 1 GPU offered as nvidia.com/mig-1g.10gb, "
        "1 core and 1Gi even without other jobs: "
        "no node that it may use offers nvidia.com/mig-1g.10gb",
    )
    assert never_on_nodes(world.state.nodes, world.state.entries[sched.key("s")].request) == [], "profiles change"
    assert world.feed(sched.node("b", 0, parts={SLICE: 1})).starts(1) == {"s": ["b"]}


def test_several_ranks_share_no_gpu(sched: SimpleNamespace) -> None:
    with pytest.raises(ValidationError, match="set workers and gpusPerWorker to 1"):
        sched.job("pair", workers=2, resource=SLICE)
    world = sched.World().feed(sched.queue(), sched.node("shared", 8, shared=True))
    world.feed(sched.job("one"), sched.job("pair", workers=2), sched.job("two", 2), sched.job("many", elastic=(1, 2)))
    assert world.starts() == {"one": ["shared"]}
    for name in ("pair", "two", "many"):
        said = [one.message for one in world.reasons()[sched.key(name)]]
        assert any(
            "no node has whole GPUs" in one and "a job has one shared or sliced GPU at most" in one for one in said
        )
    assert world.feed(sched.node("whole", 5)).starts().keys() == {"pair", "two", "many"}


def test_a_limit_and_the_type_are_the_profiles(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(types={"mig-1g.10gb": 1, "a100-shared": 1}))
    world.feed(sched.node("a", 2, parts={SLICE: 7, SHARED: 4}))
    world.feed(*(sched.job(f"{kind[-1]}{i}", resource=kind) for kind in (SLICE, SHARED) for i in range(2)))
    assert {start.key.name: start.gpu_type for start in world.decide().starts} == {
        "b0": "mig-1g.10gb",
        "d0": "a100-shared",
    }


def test_pods_of_others_hold_what_they_ask_for(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 2, parts={SLICE: 2}))
    world.feed(sched.other("x/slice", "a", **{SLICE.replace("/", "__"): "1"}))
    world.feed(sched.job("s0", resource=SLICE), sched.job("s1", resource=SLICE), sched.job("g", 2))
    assert world.starts() == {"s0": ["a"], "g": ["a"]}
    world = sched.World().feed(sched.queue(), sched.node("a", 2, parts={SLICE: 2}))
    world.feed(sched.other("x/both", "a", 1, **{SLICE.replace("/", "__"): "1"}))
    world.feed(sched.job("s", resource=SLICE), sched.job("g"))
    world.feed(sched.job("s1", resource=SLICE, queued=1), sched.job("g1", queued=1))
    assert world.starts() == {"s": ["a"], "g": ["a"]}, "of each kind what it asks for"
    world.state.forget_other(Key("x", "both"))
    assert world.starts(1) == {"s1": ["a"], "g1": ["a"]}


def test_a_runtime_does_not_ask_for_gpus(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.runtime(extended={SLICE: 1, "rdma/hca": 1}))
    world.feed(sched.node("a", 1, extended={"rdma/hca": 1}), sched.job("j"))
    assert world.starts() == {"j": ["a"]}


@pytest.mark.parametrize("guarantee", [{"guarantee": 1}, {"guaranteed": {"gpu_types": {"mig-1g.10gb": 1}}}])
def test_an_owner_reclaims_a_slice_from_those_that_hold_one(sched: SimpleNamespace, guarantee: dict[str, Any]) -> None:
    world = sched.World().feed(sched.queue("own", **guarantee), sched.queue("lent"))
    world.feed(sched.node("n", 1, parts={SLICE: 1, SHARED: 1}))
    for name, resource, gpu_type in (
        ("whole", GPU_RESOURCE, "a100"),
        ("slice", SLICE, SLICE[11:]),
        ("share", SHARED, ""),
    ):
        since = 0 if name == "slice" else 99
        world.feed(wrote(run(sched, name, "n", queue="lent", resource=resource, since=since), gpu_type=gpu_type))
    world.feed(sched.job("x", queue="own", resource=SLICE))
    assert claims(world.decide(100)) == {"x": ["slice"]}, "the others are cheaper, and of no use"
    world.feed(wrote(world.state.entries[sched.key("slice")].job, 9, phase=Phase.QUEUED, placement=()))
    assert world.starts(101) == {"x": ["n"]}


def test_a_stray_holds_the_slice_that_its_job_did(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("n", 2, parts={SLICE: 3}), sched.queue())
    ran = sched.job("ran", resource=SLICE, on=["n"], attempt=1)
    world.feed(ran, sched.pod(ran, on="n"), sched.other("x/o", "n", **{SLICE: "1"}))
    assert node_room(world.state, "n").free_gpus == 3, "the job's pod is not counted beside the job"
    world.state.forget_job(ran.key)
    assert node_room(world.state, "n").free_gpus == 3, "now its pod is"
    world.feed(*(sched.job(f"s{i}", resource=SLICE, queued=i) for i in range(2)), sched.job("g", 2))
    assert world.starts() == {"s0": ["n"], "g": ["n"]}
    said = [one.message for one in world.reasons()[sched.key("s1")]]
    assert any("held by pods outside Stoker (x/o)" in one for one in said), said


def test_what_is_kept_of_slices_holds_back_no_whole_gpu(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2, parts={SLICE: 1}), sched.queue(budget=100))
    world.feed(wrote(run(sched, "busy", "a", resource=SLICE), gpu_type="mig-1g.10gb"))
    world.feed(sched.job("first", resource=SLICE), sched.job("w", 2, queued=360))
    assert world.starts(400) == {"w": ["a"]}


kinds = st.sampled_from([GPU_RESOURCE, GPU_RESOURCE, SLICE, SHARED])
offers = st.tuples(
    st.integers(0, 4), st.booleans(), st.dictionaries(st.sampled_from([SLICE, SHARED]), st.integers(1, 4))
)
asks = st.tuples(kinds, st.integers(1, 3), st.integers(1, 2))
rounds = st.lists(st.tuples(st.lists(asks, max_size=6), st.integers(0, 2**12), offers), min_size=1, max_size=4)


def room(offer: Any, kind: str, ranks: int) -> int:
    gpus, shared, parts = offer
    if kind == GPU_RESOURCE:
        return 0 if shared and ranks > 1 else gpus
    return int(parts.get(kind, 0))


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(begin=st.lists(offers, min_size=1, max_size=3), rounds=rounds)
def test_no_resource_is_given_twice_and_nothing_waits_beside_room(
    begin: list[Any], rounds: list[Any], sched: SimpleNamespace
) -> None:
    """As often as nodes change what they offer; a job that fits into what is free has started."""
    offered = {f"n{i}": offer for i, offer in enumerate(begin)}
    world = sched.World().feed(sched.queue())
    world.feed(*(sched.node(n, gpus, shared=shared, parts=parts) for n, (gpus, shared, parts) in offered.items()))
    running: dict[str, tuple[str, int, list[str]]] = {}
    waiting: dict[str, tuple[str, int, int]] = {}
    made = 0
    for number, (asked, ending, (gpus, shared, parts)) in enumerate(rounds):
        for i, name in enumerate(sorted(running)):
            if ending >> i & 1:
                world.state.forget_job(sched.key(name))
                del running[name]
        if not any("n0" in places for _, _, places in running.values()):
            offered["n0"] = gpus, shared, parts
            world.feed(sched.node("n0", gpus, shared=shared, parts=parts))
        for kind, each, workers in asked:
            made += 1
            each, workers = (1, 1) if kind != GPU_RESOURCE else (each, workers)
            waiting[f"j{made:03}"] = kind, each, workers
            world.feed(sched.job(f"j{made:03}", each, workers=workers, resource=kind, queued=made))
        for start in world.decide(number).starts:
            kind, each, workers = waiting.pop(start.key.name)
            running[start.key.name] = kind, each, [one.node for one in start.placement]
            world.feed(sched.job(start.key.name, each, workers=workers, resource=kind, on=running[start.key.name][2]))
        held: dict[tuple[str, str], int] = {}
        for kind, each, places in running.values():
            for node in places:
                held[node, kind] = held.get((node, kind), 0) + each
                assert held[node, kind] <= room(offered[node], kind, each * len(places)), running
        for kind, each, workers in waiting.values():
            free = [room(offer, kind, each * workers) - held.get((node, kind), 0) for node, offer in offered.items()]
            assert sum(max(one, 0) // each for one in free) < workers, (kind, each, workers)
