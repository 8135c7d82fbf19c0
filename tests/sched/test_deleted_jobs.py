"""A deleted job's pods count in its queue's limit until they are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.occupancy import queue_usage
from stoker.spec.job import TrainingJob
from tests.support.preempting import claims, preempting, run


def deleted(sched: SimpleNamespace, gone: str, *others: Any) -> tuple[Any, TrainingJob]:
    """r, a gang of 2 in a queue that may hold 3 GPUs, is deleted: the object is gone, or is kept by a finalizer, or its
    name is another job's already."""
    job = sched.job("r", on=["a", "a"], workers=2, attempt=1, version=5)
    world = sched.World().feed(sched.node("a", 8), sched.queue(gpus=3), job, *others)
    world.feed(*(sched.pod(job, worker, on="a") for worker in (0, 1)))
    if gone == "kept":
        world.feed(job.model_copy(update={"metadata": _going(sched, job)}))
    else:
        world.state.forget_job(job.key)
    return world, job


def _going(sched: SimpleNamespace, job: TrainingJob) -> Any:
    return job.metadata.model_copy(update={"resource_version": "6", "deletion_timestamp": sched.T0})


@pytest.mark.parametrize("gone", ["kept", "gone"])
def test_its_pods_count_until_they_are_gone(gone: str, sched: SimpleNamespace) -> None:
    world, job = deleted(sched, gone)
    world.feed(sched.job("x", 2, version=7))
    assert world.starts() == {}
    [found] = world.reasons()[sched.key("x")]
    assert found.message == (
        "queue 'default' is short 1 of 2 GPUs: its limit is 3 GPUs, its jobs hold 2 GPUs, 2 GPUs of that in pods of "
        "deleted jobs, which still end"
    )
    world.feed(sched.pod(job, 0, on="a", going=True), sched.pod(job, 1, on="a", ended=True))
    assert world.starts() == {"x": ["a"]}
    assert queue_usage(world.state, "default").gpus == 3
    world.state.forget_pod(sched.key("r-1-0"))
    assert queue_usage(world.state, "default").gpus == 2


def test_they_count_where_their_queue_is_moved_to_and_after_it_is_deleted(sched: SimpleNamespace) -> None:
    world, job = deleted(sched, "gone", sched.queue("top", gpus=3))
    world.feed(sched.queue(gpus=3, parent="top"))
    assert queue_usage(world.state, "top").gpus == 2
    world.state.forget_queue("default")
    assert (queue_usage(world.state, "top").gpus, queue_usage(world.state, "default").gpus) == (0, 2)
    world.feed(*(sched.pod(job, worker, on="a", ended=True) for worker in (0, 1)))
    assert "default" not in world.state.queues


@pytest.mark.parametrize("change", [{"lost": 5}, None])
def test_not_on_a_node_that_is_lost(change: dict[str, Any] | None, sched: SimpleNamespace) -> None:
    world, _ = deleted(sched, "gone", sched.node("b", 8))
    assert world.feed(sched.job("x", 3)).starts() == {}
    if change is None:
        world.state.forget_node("a")
    else:
        world.feed(sched.node("a", 8, **change))
    assert world.starts() == {"x": ["b"]}


def test_a_pod_that_its_job_no_longer_counted_is_not_charged(sched: SimpleNamespace) -> None:
    """A former attempt's: the job might have run elsewhere within its limit meanwhile."""
    first = sched.job("r", 3, on=["a"], attempt=1, version=5)
    world = sched.World().feed(sched.node("a", 8), sched.queue(gpus=3), first, sched.pod(first, on="a"))
    second = sched.job("r", 3, on=["a"], attempt=2, version=6)
    world.feed(second).state.forget_job(first.key)
    assert world.feed(sched.job("x", 3)).starts() == {"x": ["a"]}


@pytest.mark.parametrize("models", [(), ("V100", "T4")], ids=["alike", "mixed"])
def test_nothing_is_preempted_for_room_that_they_will_leave(models: tuple[str, ...], sched: SimpleNamespace) -> None:
    kinds = [(model, 16, "") for model in models for _ in range(4)] or 8
    queue = preempting(sched.queue(gpus=4))
    low, gone = run(sched, "low", "a", gpus=2), sched.job("gone", 2, on=["a"], attempt=1)
    world = sched.World().feed(sched.node("a", kinds), queue, low, gone, sched.pod(gone, on="a"))
    world.state.forget_job(gone.key)
    world.feed(sched.job("high", 2, priority=1))
    assert claims(world.decide(100)) == {} == world.starts(100)
    world.feed(sched.job("higher", 4, priority=2))
    assert claims(world.decide(100)) == {"higher": ["low"]}, "who needs both has both"
    assert claims(world.decide(100)) == {}, "and waits for them"
    world.state.forget_job(low.key)
    assert world.starts(101) == {}
    world.state.forget_pod(sched.key("gone-1-0"))
    assert world.starts(101) == {"higher": ["a"]}
