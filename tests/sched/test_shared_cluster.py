"""The scheduler on nodes that others use too: runtimes, taints, labels, resources, thieves, strays; a case per rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.occupancy import node_room
from stoker.spec.job import Phase
from stoker.why.explain import never_fits

Build = Callable[[SimpleNamespace], list[Any]]


@dataclass(frozen=True)
class Case:
    name: str
    objects: Build
    starts: dict[str, list[str]] = field(default_factory=dict)
    codes: dict[str, list[str]] = field(default_factory=dict)


GPU_TAINT = "nvidia.com/gpu=present:NoSchedule"
INFRA = "dedicated=infra:NoSchedule"

CASES = [
    Case(
        "jobs with GPUs go on nodes that are tainted for GPUs, others don't",
        lambda s: [s.node("a", taints=[GPU_TAINT]), s.queue(), s.job("g", 1), s.job("c", 0)],
        {"g": ["a"]},
        {"c": ["NoCapacity"]},
    ),
    Case(
        "a taint keeps off whose runtime does not tolerate it",
        lambda s: [
            *(
                s.node("a", taints=[INFRA]),
                s.queue(),
                s.runtime("infra", tolerates=[{"key": "dedicated", "value": "infra"}]),
            ),
            *(s.job("x", 1), s.job("y", 1, runtime="infra")),
        ],
        {"y": ["a"]},
        {"x": ["NoCapacity"]},
    ),
    Case(
        "NoExecute repels, PreferNoSchedule does not",
        lambda s: [
            *(
                s.node("a", taints=["k:NoExecute"]),
                s.node("b", taints=["k:PreferNoSchedule"]),
                s.queue(),
                s.job("x", 8),
            ),
            s.job("y", 8, queued=1),
        ],
        {"x": ["b"]},
        {"y": ["NoCapacity"]},
    ),
    Case(
        "Exists with a key tolerates any value, of its effect only",
        lambda s: [
            *(s.node("a", taints=["k=1:NoSchedule"]), s.node("b", taints=["k=1:NoExecute"]), s.queue()),
            s.runtime(tolerates=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]),
            *(s.job("x", 8), s.job("y", 8, queued=1)),
        ],
        {"x": ["a"]},
        {"y": ["NoCapacity"]},
    ),
    Case(
        "who tolerates everything is still not sent to nodes that are not ready",
        lambda s: [
            *(s.node("a", taints=["node.kubernetes.io/unreachable:NoSchedule"]), s.queue()),
            *(s.node("b", taints=["node.kubernetes.io/not-ready:NoExecute"]), s.node("c", cordoned=True)),
            *(s.runtime(tolerates=[{"operator": "Exists"}]), s.job("x", 1)),
        ],
        codes={"x": ["NoCapacity"]},
    ),
    Case(
        "the runtime's node selector picks the nodes",
        lambda s: [
            *(
                s.node("a"),
                s.node("b", labels={"zone": "z", "disk": "ssd"}),
                s.node("c", labels={"zone": "z"}),
                s.queue(),
            ),
            *(s.runtime(selector={"zone": "z", "disk": "ssd"}), s.job("x", 8), s.job("y", 8, queued=1)),
        ],
        {"x": ["b"]},
        {"y": ["NoCapacity"]},
    ),
    Case(
        "extended resources count per worker",
        lambda s: [
            *(s.node("a", extended={"rdma/hca": 3}), s.node("b", extended={"rdma/hca": 2}), s.queue()),
            *(s.runtime("rdma", extended={"rdma/hca": 2}), s.job("x", 1, workers=2, runtime="rdma")),
            s.job("y", 1, queued=1, runtime="rdma"),
        ],
        {"x": ["a", "b"]},
        {"y": ["NoCapacity"]},
    ),
    Case(
        "a runtime that is not there blocks its jobs, the default one is built in",
        lambda s: [
            s.node("a"),
            s.queue(),
            s.job("x", 1),
            s.job("y", 1, runtime="gone"),
            s.job("z", 1, runtime="default"),
        ],
        {"x": ["a"]},
        {"y": ["RuntimeMissing"], "z": ["RuntimeMissing"]},
    ),
    Case(
        "a runtime of other projects blocks too",
        lambda s: [
            *(s.node("a"), s.queue(), s.runtime(projects=("mine",)), s.job("x", 1)),
            s.job("y", 1, project="mine"),
        ],
        {"y": ["a"]},
        {"x": ["RuntimeMissing"]},
    ),
    Case(
        "other people's pods hold what they ask for",
        lambda s: [
            *(s.node("a", 8, cpu=4), s.queue(), s.other("t/thief", "a", 2, cpu="2"), s.job("x", 7)),
            *(s.job("y", 6, queued=1, cpu="3"), s.job("z", 6, queued=2, cpu="2")),
        ],
        {"z": ["a"]},
        {"x": ["NoCapacity"], "y": ["NoCapacity"]},
    ),
    Case(
        "the pod of a former attempt holds its GPUs until it ends",
        lambda s: [
            *(s.node("a", 2), s.queue(), s.job("x", 2, attempt=1)),
            s.pod(s.job("x", 2, attempt=1), on="a", going=True),
        ],
        codes={"x": ["NoCapacity"]},
    ),
    Case(
        "so does one whose job is gone, or is another of the name",
        lambda s: [
            *(s.node("a", 2), s.node("b", 2), s.queue(), s.job("x", 2), s.pod(s.job("gone", 2, attempt=1), on="a")),
            s.pod(s.job("x", 2, attempt=1), on="b", uid="before"),
        ],
        codes={"x": ["NoCapacity"]},
    ),
    Case(
        "pods where their job is placed are the job's, and ended ones no job's",
        lambda s: [
            *(s.node("a", 4), s.queue(), r := s.job("r", 2, attempt=2, on=["a"]), s.pod(r, on="a")),
            *(s.pod(r, on="a", attempt=1, ended=True), s.job("x", 2)),
        ],
        {"x": ["a"]},
    ),
    Case(
        "a pod of ours on another node than its placement counts there",
        lambda s: [
            *(s.node("a", 2), s.node("b", 2), s.queue(), r := s.job("r", 2, attempt=2, on=["a"]), s.pod(r, on="b")),
            s.job("x", 2),
        ],
        codes={"x": ["NoCapacity"]},
    ),
    Case(
        "a pod that its job controls but never made counts beside it, whatever its name",
        lambda s: [
            *(s.node("a", 8), s.queue(), r := s.job("r", 1, attempt=1, on=["a"]), s.pod(r, on="a")),
            *(s.pod(r, 7, on="a", gpus=2), s.pod(r, on="a", gpus=2, name="r-1-00"), s.pod(r, on="a", gpus=2, name="r")),
            *(s.job("x", 2), s.job("y", 1, queued=1)),
        ],
        {"y": ["a"]},
        {"x": ["NoCapacity"]},
    ),
    Case(
        "what a worker's pod asks for beyond its job's claim counts too",
        lambda s: [
            *(s.node("a", 8), s.queue(), r := s.job("r", 1, attempt=1, on=["a"]), s.pod(r, on="a", gpus=7)),
            *(s.job("x", 2), s.job("y", 1, queued=1)),
        ],
        {"y": ["a"]},
        {"x": ["NoCapacity"]},
    ),
    Case(
        "a gang that pods outside Stoker keep off reserves nothing: no other job starves",
        lambda s: [
            *(s.node("a", 8), s.queue(), s.other("t/thief", "a", 1), s.job("gang", 8, queued=-9999)),
            s.job("x", 4, queued=-1),
        ],
        {"x": ["a"]},
        {"gang": ["NoCapacity"]},
    ),
    Case(
        "but one that waits for a pod on its way out keeps its place",
        lambda s: [
            *(s.node("a", 8), s.queue(), s.other("t/last", "a", 1, going=True), s.job("gang", 8, queued=-9999)),
            s.job("x", 4, queued=-1),
        ],
        codes={"gang": ["NoCapacity"], "x": ["BehindReservation"]},
    ),
]


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case, backwards: bool, sched: SimpleNamespace) -> None:
    objects = case.objects(sched)
    world = sched.World().feed(*(reversed(objects) if backwards else objects))
    assert world.starts(10) == case.starts
    world.decide(10)
    reasons = world.reasons(10)
    assert {key.name: [str(found.code) for found in reasons[key]] for key in reasons} == case.codes


def test_what_changes_wakes_who_waited(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2, taints=[INFRA]), sched.queue(), sched.job("x", 2))
    assert world.starts() == {}
    world.feed(sched.node("a", 2), sched.other("t/thief", "a", 1))
    assert world.starts() == {}
    world.feed(sched.other("t/thief", "b", 1), sched.runtime(selector={"zone": "z"}))
    assert world.starts() == {}
    assert world.feed(sched.node("a", 2, labels={"zone": "z"})).starts() == {"x": ["a"]}


def test_a_runtime_that_comes_or_goes_wakes_and_blocks_its_jobs(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 2), sched.queue(), sched.job("x", 2, runtime="fast"))
    assert world.codes("x") == ["RuntimeMissing"]
    world.feed(sched.runtime("fast", projects=("others",)))
    assert world.codes("x") == ["RuntimeMissing"]
    world.feed(sched.runtime("fast", extended={"rdma/hca": 1}))
    assert world.codes("x") == ["NoCapacity"]
    world.state.forget_runtime("fast")
    assert world.codes("x") == ["RuntimeMissing"]
    assert world.feed(sched.runtime("fast")).starts() == {"x": ["a"]}
    world.state.forget_runtime("fast")
    assert node_room(world.state, "a").free_gpus == 0, "what runs is left alone"
    world.state.forget_job(sched.key("x"))
    assert world.state.runtimes.states == {}


def test_a_stray_is_counted_once_whatever_its_job_does(sched: SimpleNamespace) -> None:
    """Attempt 1 is withdrawn, its pod lingers; attempt 2 starts beside it; both pods, one job: 4 of 4 GPUs."""
    first = sched.job("x", 2, attempt=1, on=["a"], version=2)
    world = sched.World().feed(sched.node("a", 4), sched.queue(), first, sched.pod(first, on="a"))
    free = lambda: node_room(world.state, "a").free_gpus  # noqa: E731
    assert (free(), node_room(world.state, "a").others) == (2, ())
    world.feed(sched.job("x", 2, attempt=1, version=3))
    assert (free(), node_room(world.state, "a").others) == (2, (sched.key("x-1-0"),))
    assert world.starts() == {"x": ["a"]}
    assert free() == 0
    second = sched.job("x", 2, attempt=2, on=["a"], version=4, phase=Phase.STARTING)
    assert node_room(world.feed(sched.pod(second, on="a")).state, "a").free_gpus == 0, "seen before its job's status"
    assert node_room(world.feed(second).state, "a").free_gpus == 0
    world.state.forget_pod(sched.key("x-1-0"))
    assert (free(), node_room(world.state, "a").others) == (2, ())
    world.state.forget_job(first.key)
    assert free() == 2, "the job is gone, its pod is not"
    world.feed(sched.pod(second, on="a", ended=True))
    assert free() == 4


def test_a_running_job_keeps_its_placement_when_its_node_is_cordoned_lost_or_tainted(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.queue(), sched.job("r", 2, on=["a"]))
    for changed in ({"cordoned": True}, {"lost": 5}, {"taints": [INFRA]}, {}):
        world.feed(sched.node("a", 4, **changed))
        assert node_room(world.state, "a").free_gpus == 2
    assert world.feed(sched.job("x", 2)).starts() == {"x": ["a"]}


@pytest.mark.parametrize(
    "there",
    [
        lambda s: [s.node("a", 8, cordoned=True)],
        lambda s: [s.node("a", 8, lost=1)],
        lambda s: [s.node("a", 8, taints=[INFRA])],
        lambda s: [s.node("a", 8), s.other("t/thief", "a", 8, cpu="64")],
        lambda s: [s.node("a", [("A100", 80, "unhealthy (device plugin)")] * 8)],
        lambda s: [s.node("a", 8), s.runtime(selector={"zone": "z"}, extended={"rdma/hca": 1})],
        lambda s: [s.node("a", [("unknown", 0, "")] * 8)],
        lambda s: [],
    ],
    ids=["cordoned", "lost", "tainted", "held", "unhealthy", "labels and resources", "unknown model", "no node"],
)
def test_what_may_pass_is_never_called_never(there: Build, sched: SimpleNamespace) -> None:
    wanted = sched.job("x", 8, models=("a100",), min_memory="40Gi")
    world = sched.World().feed(*there(sched), sched.queue(), wanted)
    assert never_fits(world.state, wanted) == ()
    assert world.starts() == {} and world.codes("x") == ["NoCapacity"]


def test_what_no_node_has_is_never(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), sched.other("t/thief", "a", 4), sched.queue(), sched.job("x", 8))
    assert world.codes("x") == ["NeverFits"]


def test_a_pod_on_its_way_out_may_have_asked_for_any_number_of_gpus(sched: SimpleNamespace) -> None:
    """The API server takes it; a reservation counts on what leaves."""
    going = sched.other("t/p", "a", 2**62, going=True)
    world = sched.World().feed(sched.queue(), sched.node("a", 8), going, sched.job("x", 8))
    assert world.codes("x", 100_000) == ["NoCapacity"] and world.state.plan
