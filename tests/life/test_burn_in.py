"""When a sick GPU may be tested, and what a test's end says of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from stoker.life.burn_in import FAILED, SETTLE_S, TRUST_S, BurnIn, due_at, failed, finding, job_name, job_spec, passed
from stoker.spec.gpu_health import MAX_TEXT, Cleared, Cordon, GpuHolder, GPUNodeHealth, GPUNodeHealthSpec
from stoker.spec.job import AttemptEnd, Phase, TrainingJob, TrainingJobStatus, WorkerEnd
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import BURN_IN, JOB_NAME_MAX

from .gang import NOW

UUID = "GPU-5ca1ab1e-0000-4000-8000-00000000beef"
ENDED = NOW - timedelta(minutes=1)


def cause(code: str, ends: datetime | None = None, since: datetime = NOW - timedelta(hours=1)) -> dict[str, Any]:
    return {"code": code, "since": since, "ends": ends}


def known(*causes: dict[str, Any], **spec: Any) -> GPUNodeHealth:
    status = {"gpus": [{"uuid": UUID, "causes": causes}]}
    return GPUNodeHealth(metadata=ObjectMeta(name="n"), spec=GPUNodeHealthSpec(**spec), status=status)  # type: ignore[arg-type]


def due(health: GPUNodeHealth, own: str = "", holder: str = "") -> datetime | None:
    ((gpu, causes),) = health.sick()
    holders = (GpuHolder(job_uid=holder, attempt=1),) if holder else ()
    return due_at(health, gpu.model_copy(update={"holders": holders}), causes, own)


def test_a_state_is_tested_once_it_is_over_and_an_error_a_moment_after_it() -> None:
    assert due(known(cause("RecoveryAction", ENDED))) == ENDED
    assert due(known(cause("RecoveryAction"))) is None
    error = cause("OffTheBus", since=NOW)
    assert due(known(error)) == NOW + timedelta(seconds=SETTLE_S)
    assert due(known(error, cause("Lost"))) is None, "it is not back yet"
    assert due(known(error, cause("Lost", NOW + timedelta(hours=2)))) == NOW + timedelta(hours=2)
    rests = NOW + timedelta(hours=1)
    assert due(known(cause("Throttled", rests))) == rests


@pytest.mark.parametrize("code", ["RemapFailed", "OfANewerVersion"])
def test_what_no_test_of_seconds_can_refute_is_an_administrators(code: str) -> None:
    assert due(known(cause(code))) is None
    assert due(known(cause(code, ENDED))) is None


@pytest.mark.parametrize("gpu", ["", UUID])
def test_what_is_cordoned_or_held_is_not_tested(gpu: str) -> None:
    over = cause("RecoveryAction", ENDED)
    assert due(known(over, cordons=(Cordon(gpu=gpu),))) is None
    assert due(known(over, cordons=(Cordon(gpu="another"),))) == ENDED
    assert due(known(over), holder="a job") is None
    assert due(known(over), holder="the test", own="the test") == ENDED


def test_an_error_within_a_week_of_a_burn_in_that_was_passed_is_an_administrators() -> None:
    error = cause("ContainedError", since=NOW)
    lately, long_ago = NOW - timedelta(days=1), NOW - timedelta(seconds=TRUST_S + 1)
    assert due(known(error, cleared=(Cleared(gpu=UUID, at=lately, by=BURN_IN),))) is None
    assert due(known(error, cleared=(Cleared(gpu=UUID, at=lately, by="ada"),))) is not None
    assert due(known(error, cleared=(Cleared(gpu=UUID, at=long_ago, by=BURN_IN),))) is not None
    heat = cause("Throttled", NOW, since=NOW - timedelta(minutes=5))
    assert due(known(heat, cleared=(Cleared(gpu=UUID, at=lately, by=BURN_IN),))) == NOW, "it comes and goes"


def _ended(phase: Phase, code: int | None, attempts: int = 1) -> TrainingJob:
    worker = WorkerEnd(worker=0, node="n", exit_code=code)
    ends = (AttemptEnd(number=1, ended_at=NOW, message=f"exit {code}", workers=(worker,)),) * attempts
    job = TrainingJob(metadata=ObjectMeta(name="b", creation_timestamp=ENDED), spec=job_spec(UUID, 1, BurnIn()))
    return job.model_copy(update={"status": TrainingJobStatus(phase=phase, attempts=ends)})


@pytest.mark.parametrize(
    ("phase", "code", "says"),
    [
        (Phase.SUCCEEDED, 0, True),
        (Phase.FAILED, FAILED, False),
        (Phase.FAILED, 4, None),
        (Phase.FAILED, 1, None),
        (Phase.FAILED, None, None),
        (Phase.CANCELLED, FAILED, None),
        (Phase.QUEUED, FAILED, None),
    ],
)
def test_only_success_and_the_code_of_a_failure_say_something(phase: Phase, code: int | None, says: Any) -> None:
    found = finding(_ended(phase, code))
    assert found is not None and (found.passed, found.at) == (says, NOW)
    waits = finding(_ended(phase if phase is not Phase.SUCCEEDED else Phase.CANCELLED, code, attempts=0))
    assert waits is not None and (waits.passed, waits.at) == (None, ENDED)
    assert finding(_ended(Phase.RUNNING, None)) is None


def test_what_is_found_goes_to_the_nodes_object_one_word_a_gpu() -> None:
    spec = GPUNodeHealthSpec(cleared=(Cleared(gpu=UUID, at=ENDED, by="ada"), Cleared(gpu="another", at=ENDED)))
    after = passed(spec, UUID, NOW)
    assert [(one.gpu, one.at, one.by) for one in after.cleared] == [("another", ENDED, ""), (UUID, NOW, BURN_IN)]
    (closed,) = failed(spec, UUID, "exit 3: \x1b[31m" + "x" * 2000).cordons
    assert closed.reason.startswith("burn-in failed: exit 3:  [31mxx") and len(closed.reason) == MAX_TEXT


def test_the_job_is_named_after_the_gpu_and_nothing_but_its_end_stops_it() -> None:
    assert job_name(UUID) == "burn-in-gpu-5ca1ab1e-0000-4000-8000-00000000beef"
    assert len(job_name("GPU-" + "é/" * 60)) <= JOB_NAME_MAX and not job_name("GPU-//").endswith("-")
    spec = job_spec(UUID, 8, BurnIn(seconds=30, image="trainer"))
    assert (spec.gpus_per_worker, spec.preemptible, spec.trainer.image) == (8, False, "trainer")
    assert spec.trainer.command is not None and spec.trainer.command[-3:] == (f"--gpu={UUID}", "--seconds", "30")
