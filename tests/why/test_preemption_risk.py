"""A command that may be preempted and has reported no checkpoint: who is warned, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.spec.job_parts import Trainer
from stoker.spec.queue import Preemption, Queue, WithinQueue
from stoker.spec.worker import Checkpoint, Progress
from stoker.why.explain import explain
from stoker.why.preemption_risk import warnings_at_submit
from stoker.why.sentences import AT_RISK, AT_RISK_LATER
from tests.support.preempting import wrote

SAVED = Progress(at=1, checkpoint=Checkpoint(step=1))


def _preempting(queue: Queue) -> Queue:
    preemption = Preemption(within_queue=WithinQueue.LOWER_PRIORITY)
    return queue.model_copy(update={"spec": queue.spec.model_copy(update={"preemption": preemption})})


def _tree(sched: SimpleNamespace, guarantee: int | None, others: int | None) -> list[Any]:
    """Queue `default` below `top`, beside queue `other`."""
    top = sched.queue("top", guarantee=guarantee)
    return [top, sched.queue(parent="top", guarantee=guarantee), sched.queue("other", guarantee=others)]


def _of_types(sched: SimpleNamespace, **guaranteed: int) -> list[Any]:
    return [sched.queue(guaranteed={"gpu_types": guaranteed}), sched.queue("other", guarantee=4)]


@pytest.mark.parametrize(
    ("rule", "queues", "submitted", "running"),
    [
        ("nothing preempts", lambda s: [s.queue()], False, False),
        ("its queue preempts", lambda s: [_preempting(s.queue())], True, True),
        ("another queue's guarantee may be lent to it", lambda s: _tree(s, None, 4), True, True),
        ("it runs within its own guarantee", lambda s: _tree(s, 4, 4), True, False),
        ("its queue holds more than its own", lambda s: _tree(s, 1, 4), True, True),
        ("its type's GPUs are guaranteed to its queue", lambda s: _of_types(s, a100=2), True, False),
        ("only some of its type's are", lambda s: _of_types(s, a100=1), True, True),
        ("other types' GPUs are guaranteed to its queue", lambda s: _of_types(s, h100=2), True, True),
        ("only its own queues have a guarantee", lambda s: _tree(s, 1, None), False, False),
    ],
)
def test_a_job_that_may_be_preempted(
    rule: str, queues: Any, submitted: bool, running: bool, sched: SimpleNamespace
) -> None:
    one = wrote(sched.job("x", 2, on=["a"], priority=1), gpu_type="a100")
    world = sched.World().feed(sched.node("a", 8), *queues(sched), one)
    assert warnings_at_submit(world.state, sched.job("y")) == ((AT_RISK_LATER,) if submitted else ()), rule
    hints = [(str(one.code), one.message, one.change) for one in explain(world.state, one.key, sched.at(10)).hints]
    assert hints == ([("NoCheckpoint", AT_RISK, "preemptible")] if running else []), rule


def test_no_warning_where_nothing_would_be_lost(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 8), _preempting(sched.queue()))
    kept, saved = sched.job("kept", preemptible=False, on=["a"]), sched.job("saved", on=["a"])
    saved = saved.model_copy(update={"status": saved.status.model_copy(update={"progress": SAVED})})
    recipe = sched.job("recipe", on=["a"])
    trainer = Trainer(recipe="image-classification")
    recipe = recipe.model_copy(update={"spec": recipe.spec.model_copy(update={"trainer": trainer})})
    for job in (kept, saved, recipe):
        world.feed(job)
        assert explain(world.state, job.key, sched.at(10)).hints == (), job.key
        assert warnings_at_submit(world.state, job) == (), job.key


def test_a_job_that_preempts_names_its_victims(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.node("a", 4), _preempting(sched.queue()), sched.job("low", 4, on=["a"]))
    world.feed(sched.job("high", 4, priority=1))
    world.decide(10)
    said = explain(world.state, sched.key("high"), sched.at(11))
    assert [(str(one.code), one.jobs) for one in said.blockers] == [("Preempting", ("default/low",))]
    said = explain(world.feed(sched.job("third")).state, sched.key("third"), sched.at(11))
    assert (said.blockers[0].short, said.blockers[0].of) == (5, 1), "as many are to get free"
    assert said.summary == "short 1 of 1 GPU: none is free; job low holds 4; 4 are kept for job high"
