"""What `stoker why` answers: every blocker with true numbers, the position, and hints that hold when followed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.spec.job import Phase, TrainingJob, TrainingJobSpec
from stoker.spec.queue import Queue, QueueResources
from stoker.spec.reasons import Change, Explanation, Reason
from stoker.why.explain import explain, never_fits


def texts(said: Explanation) -> tuple[str, ...]:
    return tuple(hint.message for hint in said.hints)


def why(sched: SimpleNamespace, objects: list[Any], name: str, now: float = 10) -> Explanation:
    return explain(sched.World().feed(*objects).state, sched.key(name), sched.at(now))


def test_short_of_gpus_says_how_many_where_and_who_holds_the_rest(sched: SimpleNamespace) -> None:
    said = why(
        sched,
        [
            sched.node("a", 8),
            sched.queue(),
            sched.job("x", 4, on=["a"]),
            sched.job("y", 2, on=["a"]),
            sched.job("z", 4),
        ],
        "z",
    )
    assert said.summary == "short 2 of 4 GPUs: 2 are free on node a; jobs x and y hold 6"
    blocker = said.blockers[0]
    assert (blocker.resource, blocker.short, blocker.of) == ("gpus", 2, 4)
    assert (blocker.nodes, blocker.jobs) == (("a",), ("default/x", "default/y"))
    assert texts(said) == ("with gpusPerWorker: 2 instead of 4 it would start now",)


def test_free_but_on_different_nodes_is_distinguished(sched: SimpleNamespace) -> None:
    said = why(
        sched,
        [
            sched.node("a", 4),
            sched.node("b", 4),
            sched.queue(),
            sched.job("x", 2, on=["a"]),
            sched.job("y", 3, on=["b"]),
            sched.job("z", 3),
        ],
        "z",
    )
    assert "3 are free but on different nodes (2 on a and 1 on b)" in said.summary
    assert "each worker needs 3 on one node" in said.summary
    assert said.blockers[0].short == 1


def test_queue_limit_says_used_limit_and_short(sched: SimpleNamespace) -> None:
    said = why(
        sched,
        [
            sched.node("a", 8),
            sched.queue(gpus=4),
            sched.queue("closed", projects=("others",)),
            sched.queue("calm", highest=-1),
            sched.queue("free"),
            sched.job("x", 2, on=["a"]),
            sched.job("z", 3),
        ],
        "z",
    )
    assert said.summary == "queue 'default' is short 1 of 3 GPUs: its limit is 4 GPUs, its jobs hold 2 GPUs"
    assert (said.blockers[0].queue, said.blockers[0].jobs) == ("default", ("default/x",))
    assert texts(said) == (
        "with gpusPerWorker: 2 instead of 3 it would start now",
        "in queue 'free' it would start now",
        "with limit.gpus: 5 in queue 'default' it would start now",
    )
    assert [(str(one.change), one.value, one.queue) for one in said.hints] == [
        ("gpusPerWorker", 2, None),
        ("queue", "free", None),
        ("queue.limit.gpus", 5, "default"),
    ]


def test_blame_and_back_off_say_until_when(sched: SimpleNamespace) -> None:
    objects = [sched.node("a", 4), sched.queue(), sched.job("x", blamed={"a": 60}), sched.job("y", not_before=50)]
    blamed, backing_off = why(sched, objects, "x"), why(sched, objects, "y")
    assert blamed.summary.startswith("there is room only with node a, which is avoided until 10:01:00 UTC: ")
    assert texts(blamed) == (
        "once a is no longer avoided at 10:01:00 UTC (in 50s) it would start, if nothing else changes",
    )
    assert backing_off.summary == "backing off until 10:00:50 UTC"
    assert (backing_off.hints[0].change, backing_off.hints[0].until) == ("wait", sched.at(50))
    assert texts(backing_off) == (
        "once the back-off ends at 10:00:50 UTC (in 40s) it would start, if nothing else changes",
    )


def test_blame_is_the_jobs_own_and_ends_once_there_is_room(sched: SimpleNamespace) -> None:
    """Jobs that ask for the same and avoid the same; nodes that would not help."""
    objects = [sched.node("a", 4), sched.node("b", 1), sched.queue()]
    objects += [sched.job(f"x{end}", 4, blamed={"a": end, "b": 30, "0-gone": end}) for end in (60, 90)]
    world = sched.World().feed(*objects)
    assert world.starts(10) == {}
    for end in (60, 90):
        for (found,) in (why(sched, objects, f"x{end}").blockers, world.reasons(10)[sched.key(f"x{end}")]):
            assert (str(found.code), found.nodes, found.until) == ("NodesBlamed", ("a",), sched.at(end))
    assert texts(why(sched, objects, "x60")) == (
        "once a is no longer avoided at 10:01:00 UTC (in 50s) it would start, if nothing else changes",
    )
    away = [sched.node("a", 4, ready=False), sched.queue(), sched.job("x", 4, blamed={"a": 60})]
    assert [str(one.code) for one in why(sched, away, "x").blockers] == ["NoCapacity"]


def test_a_hint_is_reported_only_if_it_holds(sched: SimpleNamespace) -> None:
    full = [sched.node("a", 4), sched.queue(), sched.queue("other"), sched.job("r", 4, on=["a"])]
    assert why(sched, [*full, sched.job("z", 2, not_before=50)], "z").hints == ()


def test_behind_a_reservation_names_whose(sched: SimpleNamespace) -> None:
    said = why(
        sched,
        [
            sched.node("a", 4),
            sched.queue(budget=1),
            sched.job("r", 2, on=["a"]),
            sched.job("head", 4),
            sched.job("small", 1, queued=1),
        ],
        "small",
        now=400,
    )
    assert said.blockers[0].jobs == ("default/head",)
    assert (
        "kept for job head (project default), which is ahead and has waited since 2026-11-21 10:00:00 UTC"
        in said.summary
    )
    assert said.position == 2


def test_cores_and_memory_short_together_get_one_hint(sched: SimpleNamespace) -> None:
    said = why(
        sched,
        [
            sched.node("a", 4, cpu=8, memory=8),
            sched.queue(),
            sched.job("r", 1, cpu="6", memory="6Gi", on=["a"]),
            sched.job("z", 2, cpu="4", memory="4Gi"),
        ],
        "z",
    )
    assert [(blocker.resource, blocker.short) for blocker in said.blockers] == [("cpu", 2), ("memory", 2 * sched.GI)]
    assert texts(said) == ("with cpu: 2 and memory: 2Gi it would start now",)
    assert (said.hints[0].change, said.hints[0].value) == ("spec", {"cpu": "2", "memory": "2Gi"})


def test_position_counts_the_queues_jobs_ahead(sched: SimpleNamespace) -> None:
    objects = [
        sched.node("a", 1),
        sched.queue(),
        sched.queue("other"),
        sched.job("r", 1, on=["a"]),
        sched.job("first", 1, priority=2, queued=9),
        sched.job("second", 1, queued=1),
        sched.job("elsewhere", 1, queue="other", queued=0),
        sched.job("third", 1, queued=2, blamed={"x": 900}),
    ]
    assert [why(sched, objects, name).position for name in ("first", "second", "third", "elsewhere")] == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("phase", "on", "message"),
    [
        (Phase.STARTING, ["a"], "placed on a; its workers are starting"),
        (Phase.RUNNING, ["a"], "running on a"),
        (Phase.STOPPING, ["a"], "stopping on a"),
        (Phase.SUCCEEDED, [], "succeeded"),
        (Phase.FAILED, [], "failed"),
        (Phase.CANCELLED, [], "cancelled"),
        (Phase.SUSPENDED, [], "suspended"),
    ],
)
def test_other_phases_have_a_sentence(phase: Phase, on: list[str], message: str, sched: SimpleNamespace) -> None:
    said = why(sched, [sched.node("a"), sched.queue(), sched.job("x", phase=phase, on=on)], "x")
    assert said.phase == phase and said.summary.startswith(message) and not said.blockers


def test_an_unobserved_job_is_a_key_error(sched: SimpleNamespace) -> None:
    with pytest.raises(KeyError):
        why(sched, [], "x")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"gpus": 8}, "the largest node, a, has 4 GPUs"),
        ({"gpus": 1, "models": ("H100",)}, "no node has a GPU of model h100; there is: NVIDIA A100-SXM4-80GB"),
        ({"gpus": 1, "min_memory": "160Gi"}, "no node has a GPU with 160Gi or more"),
        (
            {"gpus": 1, "min_capability": "9.0"},
            "no node has a GPU of compute capability 9.0 or more; there is: NVIDIA A100-SXM4-80GB (8.0)",
        ),
        ({"gpus": 1, "cpu": "65"}, "asks for 65 cores per worker; the largest node, a, has 64 cores"),
        ({"gpus": 2, "workers": 5}, "all nodes together, empty of jobs, hold 3"),
        ({"gpus": 1, "queue": "tiny", "workers": 2}, "queue 'tiny' may never hold more than 1 GPU"),
        ({"gpus": 4, "workers": 1}, ""),
        ({"gpus": 2, "workers": 3}, ""),
        ({"gpus": 1, "queue": "unknown"}, ""),
    ],
)
def test_never_fits_is_about_the_empty_cluster(job: dict[str, Any], message: str, sched: SimpleNamespace) -> None:
    # Node a is full, b is away and half of it can't be leased: all that may pass.
    gpus = [("NVIDIA A100-SXM4-80GB", 80, "foreign process 42"), ("NVIDIA A100-SXM4-80GB", 80, "")]
    world = sched.World().feed(
        sched.node("a", 4, capability="8.0"),
        sched.node("b", gpus, ready=False, capability="8.0"),
        sched.queue("tiny", gpus=1),
        sched.queue(),
        sched.job("r", 4, on=["a"]),
    )
    found = never_fits(world.state, sched.job("new", **job))
    assert (message in found[0].message) if message else not found


def test_where_queues_name_types_a_gang_runs_on_one(sched: SimpleNamespace) -> None:
    nodes = [sched.node(name, 4, model=f"NVIDIA {name}") for name in ("A100", "H100")]
    said = why(sched, [*nodes, sched.queue(types={"h100": 8}), sched.job("x", 4, workers=2)], "x")
    assert [one.message for one in said.blockers] == [
        f"asks for 2 workers of 4 GPUs of type {name}, 1 core and 1Gi; all nodes together, empty of jobs, hold 1; a "
        "gang runs on GPUs of one type"
        for name in ("a100", "h100")
    ]


def test_with_no_nodes_known_nothing_is_ruled_out(sched: SimpleNamespace) -> None:
    assert never_fits(sched.World().state, sched.job("new", 64, workers=4096)) == ()


def test_hints_hold_when_followed(sched: SimpleNamespace) -> None:
    """Random full clusters: each hint is applied to a state built anew, and the job must start there."""
    rng, reported = random.Random(3), 0
    for _ in range(60):
        objects = [
            *[sched.node(f"n{i}", rng.choice([2, 4, 8]), cpu=rng.choice([8, 16])) for i in range(3)],
            sched.queue("q", gpus=rng.choice([None, 6])),
            sched.queue("r", gpus=rng.choice([None, 4])),
            *[
                sched.job(
                    f"j{i}",
                    rng.choice([1, 2, 4]),
                    workers=rng.choice([1, 1, 2]),
                    queue=rng.choice("qr"),
                    queued=i,
                    cpu=rng.choice(["1", "6"]),
                    blamed=rng.choice([None, None, {"n0": 60}]),
                )
                for i in range(14)
            ],
        ]
        world = sched.World().feed(*objects)
        written = {start.key: start.placement for start in world.decide(10).starts}
        now = [
            item.model_copy(
                update={"status": item.status.model_copy(update={"phase": "Running", "placement": written[item.key]})}
            )
            if isinstance(item, TrainingJob) and item.key in written
            else item
            for item in objects
        ]
        for item in now:
            if isinstance(item, TrainingJob) and not item.status.placement:
                for hint in explain(world.state, item.key, sched.at(10)).hints:
                    fed, when = follow(hint, item, now, sched)
                    assert item.key.name in sched.World().feed(*fed).starts(when), (hint, item)
                    reported += 1
    assert reported > 100


def follow(hint: Reason, job: TrainingJob, objects: list[Any], sched: SimpleNamespace) -> tuple[list[Any], float]:
    """The objects as the hint says, and seconds after T0."""
    if hint.change is Change.WAIT:
        assert hint.until is not None and hint.value == hint.until.isoformat()
        return objects, (hint.until - sched.T0).total_seconds()
    assert hint.change is not None
    if hint.change.startswith("queue."):
        *above, field = hint.change.split(".")[1:]
        assert above == ["limit"]
        [queue] = [one for one in objects if isinstance(one, Queue) and one.metadata.name == hint.queue]
        limit = QueueResources.model_validate({**queue.spec.limit.model_dump(), field: hint.value})
        changed = queue.model_copy(update={"spec": queue.spec.model_copy(update={"limit": limit})})
        return [changed if one is queue else one for one in objects], 10
    fields = hint.value if hint.change is Change.SPEC else {str(hint.change): hint.value}
    spec = TrainingJobSpec.model_validate({**job.spec.model_dump(mode="json", by_alias=True), **fields})
    changed = job.model_copy(update={"spec": spec})
    return [changed if one is job else one for one in objects], 10


def test_on_a_node_that_holds_more_than_it_has_that_much_more_is_short(sched: SimpleNamespace) -> None:
    shrunk = [sched.node("a", 4), sched.node("b", 4), sched.queue(), sched.job("r", 6, on=["a"])]
    full = sched.job("s", 4, on=["b"])
    assert why(sched, [*shrunk, full, sched.job("x", 2)], "x").blockers[0].short == 2, "on b"
    assert why(sched, [*shrunk, full, sched.job("x", 2, workers=3)], "x").blockers[0].short == 4 + 4, "b, and one on a"
    away = sched.node("b", 4, ready=False)
    assert why(sched, [*shrunk, away, full, sched.job("x", 2)], "x").blockers[0].short == 4
