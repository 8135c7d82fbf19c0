"""Discipline las: who has had least goes first, and has those stopped that have had many more GPU-hours, once saved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from stoker.sched import decide
from stoker.sched.discipline import BOUNDS_S, LOSS, STANDS_BACK_S, place_in_time
from stoker.spec.job import TrainingJob
from stoker.spec.queue import Discipline, Queue
from tests.support.preempting import claims, preempting, run, wrote

HOUR = 3600.0
FIRST = BOUNDS_S[0] / HOUR
"""GPU-hours of the second class."""


def las(queue: Queue) -> Queue:
    return queue.model_copy(update={"spec": queue.spec.model_copy(update={"discipline": Discipline.LAS})})


def had(job: TrainingJob, gpu_hours: float) -> TrainingJob:
    """In former attempts."""
    return wrote(job, attained_gpu_seconds=gpu_hours * HOUR)


def long_run(sched: SimpleNamespace, name: str, *on: str, hours: float = 2 * FIRST, **more: Any) -> TrainingJob:
    """It has run so long by the time 0, and saved a minute before."""
    return run(sched, name, *on, **{"since": -hours * HOUR, "saved": -60, **more})


def test_the_more_a_job_has_had_the_longer_it_lets_others_pass_but_not_for_ever(sched: SimpleNamespace) -> None:
    back = [
        (place_in_time(sched.T0, had_s) - sched.T0).total_seconds()
        for had_s in (0, BOUNDS_S[0] - 1, *BOUNDS_S, BOUNDS_S[-1] * 99)
    ]
    assert back == [0, *STANDS_BACK_S, STANDS_BACK_S[-1]]
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1))
    world.feed(had(sched.job("long"), 999), sched.job("young", queued=STANDS_BACK_S[-1] + 1))
    assert world.starts(1e6) == {"long": ["a"]}


def test_who_has_had_least_starts_first_and_priority_before_that(sched: SimpleNamespace) -> None:
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1))
    world.feed(had(sched.job("old"), 20), had(sched.job("mid", queued=1), FIRST), sched.job("new", queued=2))
    assert world.starts(3) == {"new": ["a"]}
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1))
    world.feed(had(sched.job("urgent", priority=1), 20), sched.job("new"))
    assert world.starts(3) == {"urgent": ["a"]}


CASES: list[tuple[str, Any, dict[str, list[str]]]] = [
    ("one that has had more and has saved", lambda s: [long_run(s, "u", "a")], {"x": ["u"]}),
    ("none of the same class", lambda s: [run(s, "u", "a", since=-3000, saved=-1)], {}),
    ("what former attempts had counts", lambda s: [had(run(s, "u", "a", since=-3000, saved=-1), FIRST)], {"x": ["u"]}),
    ("none that has saved nothing", lambda s: [long_run(s, "u", "a", saved=None)], {}),
    ("none that saved long ago", lambda s: [long_run(s, "u", "a", saved=-3600)], {}),
    ("none that has just begun again", lambda s: [had(run(s, "u", "a", since=-60, saved=-1), 99)], {}),
    ("none that is not preemptible", lambda s: [long_run(s, "u", "a", preemptible=False)], {}),
    ("none of a higher priority", lambda s: [long_run(s, "u", "a", priority=1)], {}),
    (
        "one of a lower priority, whatever its class",
        lambda s: [run(s, "u", "a", since=-3400, saved=-1, priority=-1)],
        {"x": ["u"]},
    ),
    ("none of another queue", lambda s: [s.queue("q"), long_run(s, "u", "a", queue="q")], {}),
]


@pytest.mark.parametrize(("name", "objects", "expected"), CASES, ids=[case[0] for case in CASES])
def test_who_is_stopped(name: str, objects: Any, expected: dict[str, list[str]], sched: SimpleNamespace) -> None:
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1), *objects(sched), sched.job("x"))
    assert claims(world.decide(0)) == expected
    assert not claims(world.decide(0)), "decided once"


def test_it_stops_others_when_they_cross_into_a_higher_class(sched: SimpleNamespace) -> None:
    world = sched.World().feed(las(sched.queue()), sched.node("a", 2), run(sched, "u", "a", gpus=2, saved=9e6))
    decided = world.feed(sched.job("x")).decide(100)
    assert (claims(decided), decided.wake_at) == ({}, sched.at(BOUNDS_S[0] / 2)), "two GPUs: in half the time"
    assert claims(world.decide(BOUNDS_S[0] / 2)) == {"x": ["u"]}


def test_the_next_look_is_not_before_the_moment_for_which_it_is(sched: SimpleNamespace) -> None:
    for hundredth in range(20):  # most thirds of a second are no whole microseconds
        running = run(sched, "u", "a", gpus=3, saved=9e6)
        world = sched.World().feed(las(sched.queue()), sched.node("a", 3), had(running, hundredth / 100 / HOUR))
        ripe_s = sched.T0.timestamp() + (BOUNDS_S[0] - hundredth / 100) / 3
        wake_at = world.feed(sched.job("x")).decide(100).wake_at
        assert ripe_s <= wake_at.timestamp() < ripe_s + 1e-5


def test_a_minimum_run_time_is_kept(sched: SimpleNamespace) -> None:
    running = long_run(sched, "u", "a", saved=9e6)
    world = sched.World().feed(preempting(las(sched.queue()), f"{2 * FIRST + 1:.0f}h"), sched.node("a", 1), running)
    decided = world.feed(sched.job("x")).decide(0)
    assert (claims(decided), decided.wake_at) == ({}, sched.at(HOUR))
    assert claims(world.decide(HOUR)) == {"x": ["u"]}


def test_a_checkpoint_that_is_reported_makes_a_job_stoppable(sched: SimpleNamespace) -> None:
    running = long_run(sched, "u", "a", saved=-3600)
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1), running, sched.job("x"))
    assert claims(world.decide(0)) == {}
    saved = long_run(sched, "u", "a", saved=10)
    world.feed(wrote(saved))
    assert claims(world.decide(11)) == {"x": ["u"]}


@pytest.mark.parametrize("elastic", [None, (1, 2)])
def test_a_change_by_which_nothing_is_saved_has_no_job_looked_at(
    elastic: tuple[int, int] | None, sched: SimpleNamespace
) -> None:
    """Anyone may put labels on a job of theirs, as often as they like."""
    running = long_run(sched, "u", "a", saved=-3600, elastic=elastic)
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1), running, sched.job("x"))
    world.decide(0)
    again = wrote(running)
    meta = again.metadata.model_copy(update={"labels": {"a": "b"}})
    with mock.patch.object(decide, "Preemption", wraps=decide.Preemption) as looked:
        world.feed(again.model_copy(update={"metadata": meta})).decide(1)
        assert not looked.called
        world.feed(wrote(long_run(sched, "u", "a", saved=1, elastic=elastic), 3)).decide(2)
        assert looked.called


def test_what_it_stops_loses_little_of_what_it_has_had(sched: SimpleNamespace) -> None:
    """A queue's GPUs lose at most `LOSS`, however often jobs come: each attempt has had 1 / LOSS of what it loses."""
    restart_s = 120.0
    job = run(sched, "u", "a", saved=9e6)
    status = job.status.model_copy(update={"placed_at": sched.at(-restart_s), "attained_gpu_seconds": 99 * HOUR})
    job = job.model_copy(update={"status": status})
    world = sched.World().feed(las(sched.queue()), sched.node("a", 1, cpu=1), job, sched.job("x"))
    due = restart_s * 1.01 / LOSS  # its core counts a hundredth of a GPU
    assert claims(world.decide(due - 1)) == {}
    assert claims(world.decide(due + 1)) == {"x": ["u"]}


def test_fifo_and_las_take_turns_as_the_queue_says(sched: SimpleNamespace) -> None:
    objects = [sched.node("a", 1), had(sched.job("old"), 20), sched.job("new", queued=2), long_run(sched, "u", "a")]
    world = sched.World().feed(sched.queue(), *objects)
    assert claims(world.decide(3)) == {}
    world.feed(las(sched.queue()))
    assert claims(world.decide(4)) == {"new": ["u"]}
    again = sched.World().feed(las(sched.queue()), *objects)
    assert [order[2].name for order in again.state.queues["default"].filed] == ["new", "old"]
    world.feed(sched.queue())
    assert [entry.order for entry in world.state.entries.values()] == [
        entry.order for entry in sched.World().feed(sched.queue(), *objects).state.entries.values()
    ]


def test_preemption_by_priority_alone_looks_at_no_class(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(las(sched.queue())), sched.node("a", 1))
    world.feed(long_run(sched, "u", "a", saved=None, priority=-1), sched.job("x"))
    assert claims(world.decide(0)) == {"x": ["u"]}, "LowerPriority does not wait for checkpoints"
