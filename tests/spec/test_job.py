"""What a TrainingJob accepts, and how it says no."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.names import JOB_NAME_MAX

MINIMAL: dict[str, Any] = {"trainer": {"command": ["true"]}}


def make(**spec: Any) -> TrainingJob:
    return TrainingJob.model_validate({"metadata": {"name": "j"}, "spec": MINIMAL | spec})


def faults(**spec: Any) -> dict[str, str]:
    """pointer → message of what is wrong with a spec."""
    with pytest.raises(ValidationError) as caught:
        make(**spec)
    return {"/" + "/".join(str(part) for part in e["loc"]): e["msg"] for e in caught.value.errors()}


def test_a_minimal_job_has_every_default_and_survives_the_round_trip() -> None:
    job = make()
    assert (job.spec.queue, job.spec.workers, job.spec.gpus_per_worker, job.spec.cpu) == ("default", 1, 0, None)
    assert TrainingJob.model_validate(job.dump()) == job
    assert TrainingJob.model_validate_json(job.model_dump_json(by_alias=True)) == job


RECIPE = "image-classification"

FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown field", {"gpusPerWorkr": 1}, "/spec/gpusPerWorkr", "not permitted"),
    ("unknown nested field", {"stop": {"maxSeconds": 3}}, "/spec/stop/maxSeconds", "not permitted"),
    (
        "unknown config field",
        {"trainer": {"recipe": RECIPE, "config": {"epochz": 1}}},
        "/spec/trainer/config/epochz",
        "not permitted",
    ),
    (
        "config out of range",
        {"trainer": {"recipe": RECIPE, "config": {"model": {"dropout": 2}}}},
        "/spec/trainer/config/model/dropout",
        "less than 1",
    ),
    (
        "unknown recipe",
        {"trainer": {"recipe": "gpt-9"}},
        "/spec/trainer",
        "there is: bert, gpt, image-classification, lstm",
    ),
    ("neither recipe nor command", {"trainer": {}}, "/spec/trainer", "either recipe"),
    ("both", {"trainer": {"recipe": RECIPE, "command": ["x"]}}, "/spec/trainer", "either recipe"),
    ("empty command", {"trainer": {"command": []}}, "/spec/trainer", "must name a program"),
    ("gpu filter without gpus", {"gpu": {"models": ["H100"]}}, "/spec", "gpusPerWorker is 0"),
    ("workers beside elastic", {"elastic": {"min": 2, "max": 4}}, "/spec", "workers must be from elastic.min to"),
    ("negative workers", {"workers": 0}, "/spec/workers", "greater than or equal to 1"),
    ("too many gpus", {"gpusPerWorker": 1000}, "/spec/gpusPerWorker", "less than or equal to 64"),
    ("bad quantity", {"memory": "16 gigs"}, "/spec/memory", "'16Gi'"),
    ("bad duration", {"stop": {"maxDuration": "soon"}}, "/spec/stop/maxDuration", "'1h30m'"),
    ("zero duration", {"checkpoint": {"every": "0s"}}, "/spec/checkpoint/every", "longer than zero"),
    ("bad queue name", {"queue": "Team A"}, "/spec/queue", "lower-case"),
    ("reserved env", {"env": {"STOKER_X": "1"}}, "/spec/env/STOKER_X/[key]", "set by Stoker"),
    ("bad env name", {"env": {"1X": "1"}}, "/spec/env/1X/[key]", "not starting with a digit"),
    (
        "a command's setting with a recipe",
        {"trainer": {"recipe": RECIPE}, "stop": {"exitZeroAfterSignal": "Stopped"}},
        "/spec",
        "stop.exitZeroAfterSignal: Stopped is for a command",
    ),
    ("recipe settings with a command", {"stop": {"maxSteps": 3}}, "/spec", "stop.maxSteps works with a recipe"),
    (
        "retries that can't help",
        {"retry": {"rules": [{"categories": ["Diverged"], "limit": 3}]}},
        "/spec/retry/rules/0/categories",
        "can't be given retries",
    ),
    (
        "unknown category",
        {"retry": {"rules": [{"categories": ["Bad"], "limit": 3}]}},
        "/spec/retry/rules/0/categories/0",
        "UserError",
    ),
]


@pytest.mark.parametrize(("case", "spec", "pointer", "says"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_what_is_wrong_is_reported_with_a_pointer_and_a_way_out(
    case: str, spec: dict[str, Any], pointer: str, says: str
) -> None:
    found = faults(**spec)
    assert pointer in found, f"{case}: {found}"
    assert says in found[pointer]


def test_numbers_are_taken_as_quantities() -> None:
    assert make(cpu=2, memory=1073741824).memory_bytes == 2**30
    assert make(cpu=0.5).cpu_milli == 500


def test_only_the_switches_of_a_job_can_be_changed() -> None:
    old = make()

    def errors(**change: Any) -> list[str]:
        spec = old.spec.model_copy(update=change)
        return JOBS.update_errors(old, old.model_copy(update={"spec": spec}))

    assert errors(suspend=True, priority=7, cancel=True, retry_generation=1) == []
    assert errors(workers=2)[0].startswith("spec.workers can't be changed")
    assert errors(gpus_per_worker=1)[0].startswith("spec.gpusPerWorker can't be changed")
    cancelled = make(cancel=True)
    back = cancelled.model_copy(update={"spec": cancelled.spec.model_copy(update={"cancel": False})})
    assert "can't be taken back" in JOBS.update_errors(cancelled, back)[0]
    again = cancelled.spec.model_copy(update={"cancel": False, "retry_generation": 1})
    assert JOBS.update_errors(cancelled, cancelled.model_copy(update={"spec": again})) == []


def test_pod_names_of_the_longest_job_fit_a_dns_label() -> None:
    assert len(f"{'x' * JOB_NAME_MAX}-9999-4095") <= 63
