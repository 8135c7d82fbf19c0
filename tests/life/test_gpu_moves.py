"""An attempt whose GPU is sick: when it is moved, as what its end counts, and which attempts stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stoker.life.gpu_moves import MOVES, moved_for, parse_moves
from stoker.spec.gpu_health import GpuHealth, SickCause
from stoker.spec.job import GpuTest, Phase, TrainingJob
from stoker.spec.outcome import Category, Intent
from stoker.spec.reasons import Code
from stoker.spec.worker import Checkpoint, Progress

from . import gang
from .gang import NOW, after, ago, ended, go, running

SAID = "GPU 3 of n0 is sick (XID 79): the job goes on elsewhere"


def sick(*causes: str, uid: str = "u1", attempt: int = 1, since_s: float = 10) -> tuple[str, GpuHealth]:
    found = [{"code": code, "since": ago(since_s), "message": "XID 79"} for code in causes]
    holders = [{"jobUid": "other", "attempt": 1}, {"jobUid": uid, "attempt": attempt}]
    return "n0", GpuHealth.model_validate({"uuid": "GPU-3", "index": 3, "causes": found, "holders": holders})


def saved(seconds_ago: float | None) -> Progress:
    at = None if seconds_ago is None else ago(seconds_ago).timestamp()
    return Progress(at=NOW.timestamp(), step=9, checkpoint=Checkpoint(step=8, at=at))


@pytest.mark.parametrize(
    ("what", "progress", "expected"),
    [
        (sick("OffTheBus"), None, SAID),
        (sick("ContainedError"), None, SAID),
        (sick("Throttled"), None, ""),
        (sick("Throttled"), saved(None), ""),
        (sick("Throttled"), saved(11), ""),
        (sick("Throttled"), saved(9), SAID),
        (sick("Throttled", "OffTheBus"), None, SAID),
        (sick("SomethingNew"), saved(9), SAID),
        (sick("SomethingNew"), None, ""),
        (sick("OffTheBus", uid="u2"), None, ""),
        (sick("OffTheBus", attempt=2), None, ""),
    ],
)
def test_only_who_has_the_gpu_is_moved_and_when_depends_on_the_cause(
    what: tuple[str, GpuHealth], progress: Progress | None, expected: str
) -> None:
    assert moved_for(gang.job(progress=progress), [what], MOVES) == expected


def test_what_is_over_moves_no_one() -> None:
    node, gpu = sick("Throttled")
    rests = gpu.causes[0].model_copy(update={"ends": NOW + timedelta(hours=1)})
    over = gpu.model_copy(update={"causes": (rests,)})
    assert moved_for(gang.job(progress=saved(9)), [(node, over)], MOVES) == ""


def test_a_burn_in_stays_on_the_gpu_that_it_tests() -> None:
    assert moved_for(gang.job(), [sick("OffTheBus")], MOVES) == SAID
    assert moved_for(gang.job(burn_in=GpuTest(gpu="GPU-0", at=NOW)), [sick("OffTheBus")], MOVES) == ""


def test_the_administrator_decides() -> None:
    moves = parse_moves(["OffTheBus=stay", "Throttled=now"])
    assert moved_for(gang.job(), [sick("OffTheBus")], moves) == ""
    assert moved_for(gang.job(), [sick("Throttled")], moves) == SAID
    assert set(MOVES) == set(SickCause) and parse_moves([]) == MOVES
    for row in ("OffTheBus", "OffTheBus=later", "XID79=now", "=stay"):
        with pytest.raises(ValueError, match="write CAUSE=now"):
            parse_moves([row])


def test_it_is_asked_to_save_and_goes_back_to_its_queue_without_a_retry() -> None:
    job = gang.job(workers=2)
    asked = go(job, running(0), running(1), moved_for=SAID)
    assert asked.status is not None and asked.note is not None
    assert (asked.status.phase, asked.status.intent, asked.status.reason) == (
        Phase.STOPPING,
        Intent.PREEMPT,
        Code.GPU_SICK,
    )
    assert (asked.note.reason, asked.note.message) == ("GpuSick", SAID)
    stopping = after(job, asked.status)
    assert len(go(stopping, running(0), running(1), moved_for=SAID).stop) == 2
    gone = [ended(worker, gang.record(75, stop_requested=True)) for worker in (0, 1)]
    over = go(stopping, *gone).status
    assert over is not None
    assert (over.phase, over.reason, over.retries, over.not_before) == (Phase.QUEUED, Code.GPU_SICK, {}, None)
    assert over.message == SAID


@pytest.mark.parametrize(
    ("exit_code", "given", "phase", "reason"),
    [
        (1, {}, Phase.QUEUED, Code.GPU_SICK),
        (137, {"signal": 9}, Phase.QUEUED, Code.GPU_SICK),
        (1, {"held_s": 60.0}, Phase.FAILED, Code.FAILED),
        (0, {}, Phase.SUCCEEDED, Code.COMPLETED),
    ],
)
def test_one_that_failed_before_it_could_be_asked_is_moved_too(
    exit_code: int, given: dict[str, Any], phase: Phase, reason: Code
) -> None:
    record = gang.record(exit_code, failed_at=NOW.timestamp() if exit_code else None, message="CUDA error", **given)
    step = go(gang.job(), ended(0, record), moved_for=SAID)
    assert step.status is not None
    assert (step.status.phase, step.status.reason, step.status.retries) == (phase, reason, {})
    if phase is Phase.QUEUED:
        attempt = step.status.attempts[-1]
        assert attempt.intent is Intent.PREEMPT and attempt.category in (Category.USER_ERROR, Category.KILLED)
        assert step.status.message.startswith(SAID) and "CUDA error" in step.status.message
        assert step.status.not_before is None


def test_a_cancel_goes_before() -> None:
    job: TrainingJob = gang.job(cancel=True)
    step = go(job, running(0), moved_for=SAID)
    assert step.status is not None and step.status.intent is Intent.CANCEL
