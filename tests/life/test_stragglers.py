"""Gangs blame the GPU that holds them back: what one job's blame does, what several jobs' does, and what ends it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stoker.life.gpu_health import assessed, with_blame
from stoker.life.gpu_moves import MOVES, held_back, moved_for, parse_moves
from stoker.life.stragglers import HALF_LIFE
from stoker.node_health import joined
from stoker.spec.gpu_health import MOST_BLAMES, Cleared, GpuBlame, GPUNodeHealth, GPUNodeHealthSpec, GPUNodeHealthStatus
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.node import Gpu, GPUNode, GPUNodeStatus
from stoker.spec.outcome import Intent
from stoker.spec.reasons import Code
from stoker.spec.reports import GpusReport
from stoker.spec.worker import Checkpoint, Progress

from . import gang
from .gang import NOW, go, running

WHY = "held down by heat 40% of the time, the gang's median 0%"
REPORT = GpusReport.model_validate(
    {"node": "n0", "gpus": [{"uuid": "GPU-0", "index": 0}, {"uuid": "GPU-1", "index": 1}]}
)


def reported(health: GPUNodeHealth, now: datetime) -> GPUNodeHealth:
    return health.model_copy(update={"status": GPUNodeHealthStatus(gpus=assessed(health, REPORT, now))})


def after(*blames: tuple[str, timedelta], now: datetime = NOW) -> GPUNodeHealth:
    """The node after these jobs' blames of GPU-0, so long ago, and the exporter's report after each and now."""
    health = reported(GPUNodeHealth(metadata=ObjectMeta(name="n0")), now - timedelta(days=9))
    for uid, ago in blames:
        new = GpuBlame(job_uid=uid, attempt=1, at=now - ago, message=WHY)
        health = health.model_copy(update={"status": GPUNodeHealthStatus(gpus=with_blame(health, "GPU-0", new))})
        health = reported(health, now - ago)
    return reported(health, now)


def codes(health: GPUNodeHealth) -> list[tuple[str, str]]:
    return [(gpu.uuid, cause.code) for gpu, causes in health.sick() for cause in causes]


DAY, HOUR, NONE = HALF_LIFE, timedelta(hours=1), timedelta()
OUT = [("GPU-0", "Straggler")]


@pytest.mark.parametrize(
    ("blames", "expected"),
    [
        ([("a", NONE)], []),
        ([("a", HOUR), ("b", NONE)], OUT),
        ([("a", HOUR), ("a", NONE)], []),
        ([("a", DAY), ("b", NONE)], OUT),
        ([("a", DAY + HOUR), ("b", NONE)], []),
        ([("a", 12 * HOUR), ("b", 12 * HOUR)], OUT),
        ([("a", DAY + HOUR), ("b", DAY + HOUR)], []),
        ([("a", DAY + HOUR), ("b", DAY + HOUR), ("c", NONE)], OUT),
        ([(f"job-{number}", HOUR) for number in range(2 * MOST_BLAMES)], OUT),
    ],
    ids=[
        "one job", "two", "one job twice", "two in a half-life", "two in more", "half of it has decayed", "it is back",
        "a third comes", "many",
    ],
)  # fmt: skip
def test_a_gpu_is_left_out_once_two_jobs_blamed_it_and_until_that_has_decayed(
    blames: list[tuple[str, timedelta]], expected: list[tuple[str, str]]
) -> None:
    health = after(*blames)
    assert codes(health) == expected
    assert len(health.status.gpus[0].blames) <= MOST_BLAMES and not health.status.gpus[1].blames
    assert codes(reported(health, NOW + 4 * DAY)) == []
    assert list(reported(health, NOW + 4 * DAY).blamed()) == [], "forgotten"


def test_the_second_jobs_blame_leaves_it_out_at_once_and_moves_that_job() -> None:
    health, new = after(("a", HOUR)), GpuBlame(job_uid="u1", attempt=1, at=NOW, message=WHY)
    health = health.model_copy(update={"status": GPUNodeHealthStatus(gpus=with_blame(health, "GPU-0", new))})
    assert codes(health) == OUT
    [(gpu, _)] = health.sick()
    assert [(one.job_uid, one.attempt) for one in gpu.holders] == [("u1", 1)]


def test_an_administrator_clears_blame_and_new_blame_counts() -> None:
    health = after(("a", HOUR), ("b", HOUR))
    cleared = GPUNodeHealthSpec(cleared=(Cleared(gpu="GPU-0", at=NOW),))
    health = health.model_copy(update={"spec": cleared})
    assert codes(health) == [] and list(health.blamed()) == []
    again = GpuBlame(job_uid="a", attempt=2, at=NOW + HOUR)
    health = health.model_copy(update={"status": GPUNodeHealthStatus(gpus=with_blame(health, "GPU-0", again))})
    assert [gpu.blames for gpu in health.blamed()] == [(again,)]
    assert codes(reported(health, NOW + HOUR)) == []


def test_a_gpu_that_is_blamed_by_one_job_may_be_used_and_is_leased_last() -> None:
    gpus = tuple(Gpu(index=number, uuid=f"GPU-{number}", model="NVIDIA H200", memory_bytes=1) for number in range(2))
    node = GPUNode(metadata=ObjectMeta(name="n0"), status=GPUNodeStatus(ready=True, gpus=gpus))
    seen = joined(node, after(("a", HOUR))).status
    assert [(gpu.blamed, gpu.unavailable) for gpu in seen.gpus] == [(True, ""), (False, "")]
    assert seen.sick == () and [gpu.uuid for gpu in seen.blamed] == ["GPU-0"]
    seen = joined(node, after(("a", HOUR), ("b", NONE))).status
    assert [gpu.unavailable.partition(" since")[0] for gpu in seen.gpus] == [
        "sick: too hot: it held back the gangs of 2 jobs", "",
    ]  # fmt: skip


def job(saved_s: float | None, attempt: int = 1) -> TrainingJob:
    """It saved so many seconds after the blame."""
    at = None if saved_s is None else (NOW - HOUR).timestamp() + saved_s
    return gang.job(attempt=attempt, progress=Progress(at=NOW.timestamp(), checkpoint=Checkpoint(step=8, at=at)))


@pytest.mark.parametrize(
    ("of", "uid", "options", "is_moved"),
    [
        (job(1), "u1", [], True),
        (job(-1), "u1", [], False),
        (job(None), "u1", [], False),
        (job(1), "another", [], False),
        (job(1, attempt=2), "u1", [], False),
        (job(1), "u1", ["Straggler=stay"], False),
        (job(None), "u1", ["Straggler=now"], True),
    ],
)
def test_the_job_that_blames_a_gpu_is_moved_at_its_checkpoint_and_only_once(
    of: TrainingJob, uid: str, options: list[str], is_moved: bool
) -> None:
    health = after((uid, HOUR))
    expected = ("n0", f"GPU 0 of n0 holds the gang back ({WHY}): the job goes on elsewhere") if is_moved else ("", "")
    assert held_back(of, [("n0", gpu) for gpu in health.blamed()], parse_moves(options)) == expected
    assert moved_for(of, [("n0", gpu) for gpu, _ in health.sick()], MOVES) == ""


def test_it_keeps_away_from_that_node_for_a_while() -> None:
    step = go(gang.job(phase=Phase.RUNNING, attempt=1), running(), moved_for="why", avoids="n0")
    assert step.status is not None
    assert (step.status.intent, step.status.reason) == (Intent.PREEMPT, Code.GPU_SICK)
    assert [one.node for one in step.status.blamed] == ["n0"]
    step = go(gang.job(phase=Phase.RUNNING, attempt=1), running(), moved_for="why")
    assert step.status is not None and step.status.blamed == ()
