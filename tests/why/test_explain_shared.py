"""What `stoker why` says of nodes that others use too: the thieves by name, closed nodes counted, hints that hold."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.spec.meta import Key
from stoker.spec.reasons import Change, Explanation
from stoker.why.explain import explain

INFRA = "dedicated=infra:NoSchedule"


def texts(said: Explanation) -> tuple[str, ...]:
    return tuple(hint.message for hint in said.hints)


def why(sched: SimpleNamespace, objects: list[Any], name: str = "x", now: float = 10) -> Explanation:
    return explain(sched.World().feed(*objects).state, sched.key(name), sched.at(now))


def test_a_thief_is_named_and_what_would_help(sched: SimpleNamespace) -> None:
    said = why(sched, [sched.node("n0"), sched.queue(), sched.other("team-x/thief-abc", "n0", 2), sched.job("x", 8)])
    assert said.summary == (
        "the nodes that are usable now would hold 0 of 1 worker of 8 GPUs, 1 core and 1Gi even without other jobs: "
        "n0: 2 of 8 GPUs are held by pods outside Stoker (team-x/thief-abc)"
    )
    assert texts(said) == (
        "with gpusPerWorker: 6 instead of 8 it would start now",
        "once pod team-x/thief-abc on n0 is gone it would start now",
    )


def test_jobs_and_thieves_are_distinguished(sched: SimpleNamespace) -> None:
    objects = [
        *(sched.node("n0"), sched.node("n1"), sched.queue(), sched.job("r", 4, on=["n0"])),
        *(sched.other(f"t/p{i}", "n1", 2) for i in range(4)),
        sched.job("x", 6),
    ]
    said = why(sched, objects)
    assert said.summary == (
        "short 2 of 6 GPUs: 4 are free on node n0; job r holds 4; "
        "n1: 8 of 8 GPUs are held by pods outside Stoker (t/p0, t/p1 and 2 more)"
    )
    assert "once pods t/p0, t/p1 and t/p2 on n1 are gone it would start now" in texts(said)


SLICE = "nvidia.com/mig-1g.10gb"
TWO_KINDS = [("A100", 80, "")] * 4 + [("T4", 16, "")] * 4


@pytest.mark.parametrize(
    ("world", "asks", "says"),
    [
        (
            lambda s: [s.node("a", TWO_KINDS), *(s.job(m, 3, models=(m,), on=["a"]) for m in ("a100", "t4"))],
            {"gpus": 4, "models": ("t4",)},
            "short 3 of 4 GPUs of model t4: 1 is free on node a; job t4 holds 3; "
            "1 free GPU is of another kind or can't be counted on",
        ),
        (
            lambda s: [s.node("a", 4, model="A100"), s.node("b", 2, model="A100"), s.node("c", 3, model="T4"),
                       s.job("r", 4, on=["a"])],
            {"gpus": 4, "models": ("a100",)},
            "short 4 of 4 GPUs of model a100: 2 are free, where no worker fits; job r holds 4; "
            "3 free GPUs are of another kind or can't be counted on",
        ),
        (
            lambda s: [s.node("a", 8, parts={SLICE: 7}), s.job("r", on=["a"]), s.other("t/p", "a", **{SLICE: "1"})],
            {"gpus": 8},
            "short 1 of 8 GPUs: 7 are free on node a; job r holds 1; "
            "6 free GPUs are of another kind or can't be counted on",
        ),
        (
            lambda s: [s.node("a", 8, parts={SLICE: 2}), s.job("r", 6, on=["a"]), s.other("t/w", "a", 2),
                       s.job("m", resource=SLICE, on=["a"]), s.other("t/p", "a", **{SLICE: "1"})],
            {"gpus": 1, "resource": SLICE},
            f"short 1 of 1 GPU offered as {SLICE}: none is free; job m holds 1; "
            "a: 1 of 2 GPUs is held by pods outside Stoker (t/p)",
        ),
    ],
    ids=["two kinds on one node", "free on a small node", "slices held outside", "slices asked for"],
)  # fmt: skip
def test_only_gpus_that_would_do_count(world: Any, asks: dict[str, Any], says: str, sched: SimpleNamespace) -> None:
    assert why(sched, [*world(sched), sched.queue(), sched.job("x", **asks)]).summary == says


def test_pods_of_ours_gone_astray_are_called_so(sched: SimpleNamespace) -> None:
    old = sched.job("old", 8, attempt=1)
    said = why(sched, [sched.node("n0"), sched.queue(), sched.pod(old, on="n0", going=True), sched.job("x", 8)])
    assert said.summary == (
        "short 8 of 8 GPUs: none is free; "
        "n0: 8 of 8 GPUs are held by pods of former attempts or deleted jobs (default/old-1-0)"
    )
    assert texts(said) == ("once pod default/old-1-0 on n0 is gone it would start now",)


def test_thieves_on_many_nodes_are_added_up(sched: SimpleNamespace) -> None:
    objects = [
        *(sched.node(f"n{i}") for i in range(3)),
        *(sched.other(f"t/p{i}", f"n{i}", i + 1) for i in range(3)),
        *(sched.queue(), sched.job("x", 8, workers=3)),
    ]
    said = why(sched, objects)
    assert "6 of 24 GPUs on 3 nodes are held by pods outside Stoker (t/p2, t/p1 and t/p0)" in said.summary
    assert "once pods t/p0, t/p1 and t/p2 on n0, n1 and n2 are gone it would start now" in texts(said)


def test_a_pod_that_keeps_out_several_workers_is_enough(sched: SimpleNamespace) -> None:
    others = [sched.other("t/big", "n0", 6), sched.other("t/small", "n1", 1)]
    said = why(sched, [sched.node("n0"), sched.node("n1", 2), sched.queue(), *others, sched.job("x", 2, workers=4)])
    assert texts(said)[-1] == "once pod t/big on n0 is gone it would start now"


def test_one_process_alone_may_have_a_shared_gpu(sched: SimpleNamespace) -> None:
    nodes = [sched.node("n0", shared=True), sched.queue()]
    assert texts(why(sched, [*nodes, sched.job("x", 2)])) == ("with gpusPerWorker: 1 instead of 2 it would start now",)
    assert texts(why(sched, [*nodes, sched.job("x", workers=2)])) == (
        "with workers: 1 instead of 2 it would start now",
    )


def test_small_pods_that_change_nothing_are_not_blamed(sched: SimpleNamespace) -> None:
    objects = [sched.node("n0", 8, cpu=64), sched.queue(), sched.other("kube-system/proxy", "n0", cpu="100m")]
    said = why(sched, [*objects, sched.job("r", 8, on=["n0"]), sched.job("x", 8)])
    assert said.summary == "short 8 of 8 GPUs: none is free; job r holds 8"


def test_cores_that_are_held_outside(sched: SimpleNamespace) -> None:
    said = why(
        sched,
        [sched.node("n0", 0, cpu=4), sched.queue(), sched.other("t/p", "n0", cpu="2"), sched.job("x", 0, cpu="3")],
    )
    assert "n0: 2 of 4 cores are held by pods outside Stoker (t/p)" in said.summary


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        (lambda s: [s.node(f"n{i}", cordoned=True) for i in range(3)], "3 nodes are cordoned (n0, n1 and n2)"),
        (lambda s: [s.node("n0", cordoned=True)], "1 node is cordoned (n0)"),
        (lambda s: [s.node("n0", lost=5)], "n0 has been lost since 2026-11-21 10:00:05 UTC (agent silent)"),
        (lambda s: [s.node(f"n{i}", lost=5) for i in range(5)], "5 nodes are lost (n0, n1 and 3 more)"),
        (lambda s: [s.node("n0", ready=False)], "n0 is not ready (agent silent)"),
        (
            lambda s: [s.node("n0", taints=[INFRA]), s.node("n1", taints=[INFRA, "k:NoExecute"])],
            "2 nodes have taint dedicated=infra:NoSchedule that runtime default does not tolerate",
        ),
        (lambda s: [s.node("n0"), s.runtime(selector={"zone": "a"})], "no node has the runtime's label zone=a"),
        (
            lambda s: [s.node("n0"), s.node("n1", 4, labels={"zone": "a"}), s.runtime(selector={"zone": "a"})],
            "1 node without the runtime's label zone=a",
        ),
        (lambda s: [s.node("n0"), s.runtime(extended={"rdma/hca": 1})], "no node that it may use offers rdma/hca"),
        (
            lambda s: [s.node("n0", [("A100", 80, "unhealthy (device plugin)")] * 2 + [("A100", 80, "")] * 6)],
            "2 GPUs can't be leased (2 of n0: unhealthy (device plugin))",
        ),
        (
            lambda s: [
                s.node("n0", extended={"rdma/hca": 1}, cpu=0),
                s.node("n1"),
                s.runtime(extended={"rdma/hca": 1}),
            ],
            "each needs all of that on one node",
        ),
        (
            lambda s: [
                s.node("n0", [("unknown", 0, "")] * 8, lost=5),
                s.node("n1", [("unknown", 0, "")] * 4, shared=True),
            ],
            "n0 has been lost since 2026-11-21 10:00:05 UTC (agent silent)",
        ),
    ],
)
def test_closed_nodes_are_counted_with_text(nodes: Any, sentence: str, sched: SimpleNamespace) -> None:
    said = why(sched, [*nodes(sched), sched.queue(), sched.job("x", 8)])
    assert said.summary.endswith(f"even without other jobs: {sentence}")


def test_gpus_never_reported_are_a_reason(sched: SimpleNamespace) -> None:
    nodes = [sched.node("n0", [("unknown", 0, "")] * 8), sched.node("n1", 8, model="T4", gpu_memory=16)]
    said = why(sched, [*nodes, sched.queue(), sched.job("x", 8, models=("a100",))])
    assert "8 GPUs of unknown model: without labels of GPU Feature Discovery" in said.summary


@pytest.mark.parametrize(
    ("closed", "hint"),
    [
        ({"cordoned": True}, "once n1 is uncordoned it would start now"),
        (
            {"lost": 1, "taints": ["node.kubernetes.io/unreachable:NoExecute"]},
            "once n1 is ready again it would start now",
        ),
        ({"cordoned": True, "taints": [INFRA]}, None),
    ],
)
def test_a_node_that_would_help_is_named(closed: dict[str, Any], hint: str | None, sched: SimpleNamespace) -> None:
    objects = [sched.node("n0", 4), sched.node("n1", 8, **closed), sched.queue(), sched.job("x", 8)]
    assert [reported for reported in texts(why(sched, objects)) if reported.startswith("once")] == (
        [hint] if hint else []
    )


def test_a_missing_runtime_says_which_there_are(sched: SimpleNamespace) -> None:
    objects = [sched.node("n0"), sched.queue(), sched.runtime("fast"), sched.runtime("theirs", projects=("others",))]
    said = why(sched, [*objects, sched.job("x", 1, runtime="gone"), sched.job("y", 1, runtime="theirs")])
    assert said.summary == "there is no runtime 'gone'; open to it: fast" and said.hints == ()
    assert said.blockers[0].runtime == "gone"
    said = why(sched, [*objects, sched.job("y", 1, runtime="theirs")], "y")
    assert said.summary == "runtime 'theirs' is not open to project 'default'; open to it: fast"


def test_a_missing_queue_says_which_would_take_the_job(sched: SimpleNamespace) -> None:
    queues = [sched.queue("top"), sched.queue("low", parent="top"), sched.queue("theirs", projects=("others",))]
    said = why(sched, [sched.node("n0"), *queues, sched.job("x", queue="gone")])
    assert said.summary == "there is no queue 'gone'; open to it: low"


@pytest.mark.parametrize("seed", range(30))
def test_hints_hold_when_followed(seed: int, sched: SimpleNamespace) -> None:
    """Whatever is said of pods and nodes is done on the state: then the job starts."""
    rng = random.Random(seed)
    nodes = [sched.node(f"n{i}", rng.choice([4, 8]), cordoned=rng.random() < 0.3) for i in range(4)]
    others = [sched.other(f"t/p{i}", f"n{rng.randrange(4)}", rng.randint(1, 4)) for i in range(6)]
    jobs = [sched.job(f"r{i}", 2, on=[f"n{rng.randrange(4)}"]) for i in range(2)]
    wanted = sched.job("x", rng.choice([2, 4, 8]), workers=rng.choice([1, 2, 3]))
    objects = [*nodes, *others, *jobs, sched.queue(), wanted]
    for hint in why(sched, objects).hints:
        world = sched.World().feed(*objects)
        if hint.change is Change.DELETE_PODS:
            for name in hint.value:
                world.state.forget_other(Key(*name.split("/")))
        elif hint.change is Change.UNCORDON:
            for node in nodes:
                if node.metadata.name in hint.value:
                    world.feed(sched.node(node.metadata.name, len(node.status.gpus)))
        else:
            continue
        assert "x" in world.starts(10), hint
