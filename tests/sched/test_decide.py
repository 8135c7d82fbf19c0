"""The scheduler's rules, one case each: the name is the rule, the body is data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

Build = Callable[[SimpleNamespace], list[Any]]


@dataclass(frozen=True)
class Case:
    name: str
    objects: Build
    starts: dict[str, list[str]]
    codes: dict[str, list[str]]
    now: float = 10.0
    wake: float | None = None


CASES = [
    Case(
        "an empty world decides nothing",
        lambda s: [],
        {},
        {},
    ),
    Case(
        "a job that fits starts",
        lambda s: [s.node("a", 1), s.queue(), s.job("x")],
        {"x": ["a"]},
        {},
    ),
    Case(
        "no nodes: no capacity",
        lambda s: [s.queue(), s.job("x")],
        {},
        {"x": ["NoCapacity"]},
    ),
    Case(
        "a node that is not ready takes nothing",
        lambda s: [s.node("a", 8, ready=False), s.queue(), s.job("x")],
        {},
        {"x": ["NoCapacity"]},
    ),
    Case(
        "a GPU marked unavailable is not used",
        lambda s: [s.node("a", [("A100", 80, "foreign process 42"), ("A100", 80, "")]), s.queue(), s.job("x", 2)],
        {},
        {"x": ["NoCapacity"]},
    ),
    Case(
        "higher priority first, then the longer wait, then the name",
        lambda s: [
            s.node("a", 3),
            s.queue(),
            s.job("late", queued=5),
            s.job("early-b", queued=1),
            s.job("early-a", queued=1),
            s.job("urgent", priority=1, queued=9),
        ],
        {"urgent": ["a"], "early-a": ["a"], "early-b": ["a"]},
        {"late": ["NoCapacity"]},
    ),
    Case(
        "queue limit in GPUs holds, other queues are not blocked by it",
        lambda s: [
            s.node("a", 8),
            s.queue("small", gpus=2),
            s.queue("big"),
            s.job("r", 2, queue="small", on=["a"]),
            s.job("x", 1, queue="small", queued=1, priority=5),
            s.job("y", 4, queue="big", queued=2),
        ],
        {"y": ["a"]},
        {"x": ["QueueLimit"]},
    ),
    Case(
        "a limit holds for all queues below, however deep",
        lambda s: [
            s.node("a", 8),
            s.queue("top", gpus=4),
            s.queue("mid", parent="top"),
            s.queue("low", gpus=3, parent="mid"),
            s.queue("side", parent="top"),
            s.job("r", 2, queue="side", on=["a"]),
            s.job("x", 3, queue="low"),
            s.job("y", 2, queue="low", queued=1),
            s.job("z", 1, queue="side", queued=2),
        ],
        {"y": ["a"]},
        {"x": ["QueueLimit", "QueueLimit"], "z": ["QueueLimit"]},
    ),
    Case(
        "jobs run in queues that have none below",
        lambda s: [s.node("a", 8), s.queue("top"), s.queue("low", parent="top"), s.job("x", queue="top")],
        {},
        {"x": ["NeverFits"]},
    ),
    Case(
        "parents in a cycle, or that are missing, do not count",
        lambda s: [
            s.node("a", 8),
            s.queue("a", gpus=1, parent="b"),
            s.queue("b", gpus=1, parent="a"),
            s.queue("c", gpus=1, parent="gone"),
            *[s.job(f"{name}{i}", queue=name, queued=i) for name in "abc" for i in (1, 2)],
        ],
        {"a1": ["a"], "b1": ["a"], "c1": ["a"]},
        {name: ["QueueLimit"] for name in ("a2", "b2", "c2")},
    ),
    Case(
        "queue limit in cores and in memory",
        lambda s: [
            s.node("a", 8),
            s.queue("q", cpu="4", memory="8Gi"),
            s.job("cores", queue="q", cpu="5", memory="1Gi"),
            s.job("bytes", queue="q", cpu="1", memory="9Gi"),
            s.job("fits", queue="q", cpu="4", memory="8Gi"),
            s.job("too-late", queue="q", cpu="1", memory="1Gi", queued=1),
        ],
        {"fits": ["a"]},
        {"cores": ["NeverFits"], "bytes": ["NeverFits"], "too-late": ["QueueLimit", "QueueLimit"]},
    ),
    Case(
        "what a job doesn't ask for can't be short: CPU jobs start over a full GPU limit",
        lambda s: [s.node("a", 8), s.queue(gpus=0), s.job("x", 0), s.job("y", 1)],
        {"x": ["a"]},
        {"y": ["NeverFits"]},
    ),
    Case(
        "no queue, wrong project, priority too high",
        lambda s: [
            s.node("a", 8),
            s.queue("vision", projects=("team-a",)),
            s.queue("calm", highest=5),
            s.job("lost", queue="nowhere"),
            s.job("stranger", queue="vision"),
            s.job("loud", queue="calm", priority=6),
        ],
        {},
        {"lost": ["QueueMissing"], "stranger": ["ProjectNotAllowed"], "loud": ["PriorityTooHigh"]},
    ),
    Case(
        "gang waits: 15 of 16 GPUs free",
        lambda s: [
            s.node("a", 8),
            s.node("b", 8),
            s.queue(),
            s.job("r", 1, on=["b"]),
            s.job("gang", 8, workers=2),
        ],
        {},
        {"gang": ["NoCapacity"]},
    ),
    Case(
        "workers of a gang share a node where they can",
        lambda s: [s.node("a", 8), s.node("b", 4), s.queue(), s.job("gang", 2, workers=2)],
        {"gang": ["b", "b"]},
        {},
    ),
    Case(
        "a gang takes as few nodes as it can, its rest the fullest that still fits",
        lambda s: [s.node("a", 2), s.node("b", 8), s.node("c", 4), s.node("d", 8), s.queue(), s.job("g", 2, workers=5)],
        {"g": ["b"] * 4 + ["a"]},
        {},
    ),
    Case(
        "best fit: the fullest node that still fits; whole nodes stay whole",
        lambda s: [
            s.node("a", 8),
            s.node("b", 8),
            s.node("c", 8),
            s.queue(),
            s.job("r1", 5, on=["b"]),
            s.job("r2", 7, on=["c"]),
            s.job("x", 2),
        ],
        {"x": ["b"]},
        {},
    ),
    Case(
        "jobs without GPUs go where the fewest GPUs are free",
        lambda s: [s.node("gpu", 8), s.node("cpu", 0), s.queue(), s.job("x", 0)],
        {"x": ["cpu"]},
        {},
    ),
    Case(
        "smaller jobs pass a young head that does not fit",
        lambda s: [s.node("a", 4), s.queue(), s.job("r", 2, on=["a"]), s.job("head", 4), s.job("small", 1, queued=1)],
        {"small": ["a"]},
        {"head": ["NoCapacity"]},
    ),
    Case(
        "a head that has waited 300 s is passed by no job that takes what it could use",
        lambda s: [
            s.node("a", 4),
            s.queue(budget=1),
            s.job("r", 2, on=["a"]),
            s.job("head", 4),
            s.job("small", 1, queued=1),
            s.job("cpu", 0, queued=2),
        ],
        {"cpu": ["a"]},
        {"head": ["NoCapacity"], "small": ["BehindReservation"]},
        now=300,
    ),
    Case(
        "a reservation binds only those behind it",
        lambda s: [
            s.node("a", 4),
            s.queue(),
            s.job("r", 2, on=["a"]),
            s.job("head", 4),
            s.job("urgent", 1, queued=1, priority=1),
        ],
        {"urgent": ["a"]},
        {"head": ["NoCapacity"]},
        now=300,
    ),
    Case(
        "a reservation leaves alone GPUs the head could not use",
        lambda s: [
            s.node("a", 4, model="A100"),
            s.node("t", 4, model="T4"),
            s.queue(budget=1),
            s.job("r", 2, on=["a"]),
            s.job("head", 4, models=("A100",)),
            s.job("small", 1, queued=1),
        ],
        {"small": ["t"]},
        {"head": ["NoCapacity"]},
        now=300,
    ),
    Case(
        "a reservation leaves alone the other GPUs of a mixed node too",
        lambda s: [
            s.node("m", [("A100", 80, "")] * 2 + [("T4", 16, "")] * 2),
            s.queue(budget=1),
            s.job("r", 1, models=("A100",), on=["m"]),
            s.job("head", 2, models=("A100",)),
            s.job("other", 2, models=("T4",), queued=1),
            s.job("same", 1, models=("A100",), queued=2),
        ],
        {"other": ["m"]},
        {"head": ["NoCapacity"], "same": ["BehindReservation"]},
        now=300,
    ),
    Case(
        "a reservation keeps the nodes the head is to run on, not all it might",
        lambda s: [
            s.node("a", 4),
            s.node("b", 4),
            s.queue(budget=1),
            s.job("r1", 1, on=["a"]),
            s.job("r2", 3, on=["b"]),
            s.job("head", 2, workers=2),
            s.job("small", 1, queued=1),
            s.job("next", 1, queued=2),
        ],
        {"small": ["b"]},
        {"head": ["NoCapacity"], "next": ["BehindReservation"]},
        now=300,
    ),
    Case(
        "a head that could never fit reserves nothing",
        lambda s: [s.node("a", 4), s.queue(), s.job("head", 5), s.job("small", 1, queued=1)],
        {"small": ["a"]},
        {"head": ["NeverFits"]},
        now=9000,
    ),
    Case(
        "a head over its queue's limit holds back its own queue in time, never another",
        lambda s: [
            s.node("a", 8),
            s.queue("q", gpus=4),
            s.queue("other"),
            s.job("r", 3, queue="q", on=["a"]),
            s.job("head", 4, queue="q"),
            s.job("small", 1, queue="q", queued=1),
            s.job("free", 5, queue="other", queued=2),
        ],
        {"free": ["a"]},
        {"head": ["QueueLimit", "NoCapacity"], "small": ["NoCapacity"]},
        now=300,
    ),
    Case(
        "a blamed node is avoided",
        lambda s: [s.node("a", 1), s.node("b", 8), s.queue(), s.job("x", blamed={"a": 60})],
        {"x": ["b"]},
        {},
    ),
    Case(
        "only the blamed node could hold it: said, and woken when the blame ends",
        lambda s: [s.node("a", 2), s.node("b", 1), s.queue(), s.job("x", 2, blamed={"a": 60})],
        {},
        {"x": ["NodesBlamed"]},
        wake=60,
    ),
    Case(
        "an expired blame is forgotten",
        lambda s: [s.node("a", 2), s.queue(), s.job("x", 2, blamed={"a": 9})],
        {"x": ["a"]},
        {},
    ),
    Case(
        "backing off: not before, woken then",
        lambda s: [s.node("a", 2), s.queue(), s.job("x", not_before=45), s.job("y", not_before=30)],
        {},
        {"x": ["BackingOff"], "y": ["BackingOff"]},
        wake=30,
    ),
    Case(
        "suspended and cancelled jobs don't start and are not asked why",
        lambda s: [s.node("a", 8), s.queue(), s.job("x", suspend=True), s.job("y", cancel=True)],
        {},
        {},
    ),
    Case(
        "a GPU of unknown compute capability is none that suffices",
        lambda s: [
            *(
                s.node(name, 8, capability=able)
                for name, able in zip("abcd", (None, "8.0", "9.0", "12.1"), strict=True)
            ),
            s.queue(),
            s.job("x", 8, min_capability="8.6"),
            s.job("y", 8, min_capability="10.0", queued=1),
            s.job("z", 8, min_capability="8", queued=2),
        ],
        {"x": ["c"], "y": ["d"], "z": ["b"]},
        {},
    ),
    Case(
        "a GPU of unknown power limit is none that is low enough",
        lambda s: [
            *(s.node(name, 8, watts=watts) for name, watts in zip("abc", (0, 400, 700), strict=True)),
            s.node("d", 8, watts=[350, 350, 700, 700]),
            s.queue(),
            s.job("x", 8, max_power=400),
            s.job("y", 2, max_power=399, queued=1),
            s.job("z", 8, max_power=300, queued=2),
        ],
        {"x": ["b"], "y": ["d"]},
        {"z": ["NoCapacity"]},
    ),
    Case(
        "models match part of the name, case ignored",
        lambda s: [s.node("a", 8, model="NVIDIA H100 80GB HBM3"), s.queue(), s.job("x", models=("h100",))],
        {"x": ["a"]},
        {},
    ),
    Case(
        "minMemory is each GPU's",
        lambda s: [
            s.node("a", 8, gpu_memory=16),
            s.node("b", 1, gpu_memory=80),
            s.queue(),
            s.job("x", min_memory="40Gi"),
        ],
        {"x": ["b"]},
        {},
    ),
    Case(
        "on a mixed node the picks of others are counted at their worst",
        lambda s: [
            s.node("m", [("A100", 80, "")] * 2 + [("T4", 16, "")] * 2),
            s.queue(),
            s.job("any", 1, on=["m"]),
            s.job("t4", 1, models=("T4",), on=["m"]),
            s.job("two-a100", 2, models=("A100",)),
            s.job("one-a100", 1, models=("A100",), queued=1),
        ],
        {"one-a100": ["m"]},
        {"two-a100": ["NoCapacity"]},
    ),
    Case(
        "cores and memory bind too",
        lambda s: [
            s.node("a", 8, cpu=4, memory=4),
            s.queue(),
            s.job("r", 0, cpu="2", memory="1Gi", on=["a"]),
            s.job("cores", cpu="3"),
            s.job("bytes", memory="4Gi", queued=1),
            s.job("fits", cpu="2", memory="3Gi", queued=2),
        ],
        {"fits": ["a"]},
        {"cores": ["NoCapacity", "NoCapacity"], "bytes": ["NoCapacity", "NoCapacity"]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_rule(case: Case, backwards: bool, sched: SimpleNamespace) -> None:
    objects = case.objects(sched)
    world = sched.World().feed(*(reversed(objects) if backwards else objects))
    decisions = world.decide(case.now)
    started = {start.key.name: [placed.node for placed in start.placement] for start in decisions.starts}
    assert started == case.starts
    reasons = world.reasons(case.now)
    codes = {waiting.name: [str(blocker.code) for blocker in found] for waiting, found in reasons.items()}
    assert codes == case.codes
    assert decisions.wake_at == (None if case.wake is None else sched.at(case.wake))
    assert world.starts(case.now) == {}, "a second decide must not start anything"
