"""When there is a pod that reads a job's files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.life.files_reader import FAILED_STAYS_S, READABLE, STARTS_WITHIN_S, WANTED_S, reader_step
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import ANNOTATION_FILES_WANTED
from stoker.spec.pod import Container, Pod, PodSpec, PodStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(phase: Phase = Phase.SUCCEEDED, wanted: Any = NOW, **meta: Any) -> TrainingJob:
    annotations = {} if wanted is None else {ANNOTATION_FILES_WANTED: str(wanted)}
    return TrainingJob(
        metadata=ObjectMeta(name="one", namespace="p", uid="u", annotations=annotations, **meta),
        spec={"trainer": {"command": ["x"]}},  # type: ignore[arg-type]
        status={"phase": phase},  # type: ignore[arg-type]
    )


def pod(phase: str = "Running", age_s: float = 0.0, **meta: Any) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="one-files", namespace="p", creation_timestamp=NOW - timedelta(seconds=age_s), **meta),
        spec=PodSpec(containers=(Container(),)),
        status=PodStatus.model_validate({"phase": phase}),
    )


@pytest.mark.parametrize("phase", list(Phase))
def test_it_is_made_where_files_are_wanted_and_no_worker_can_be_asked(phase: Phase) -> None:
    assert reader_step(job(phase), [], NOW).create is (phase in READABLE)
    assert Phase.RUNNING not in READABLE and Phase.QUEUED not in READABLE and Phase.SUCCEEDED in READABLE


@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        (NOW, True), (NOW - timedelta(seconds=WANTED_S - 1), True), (NOW - timedelta(seconds=WANTED_S + 1), False),
        (NOW + timedelta(days=1000), False), (None, False), ("soon", False), ("2026-01-01T00:00:00", True), ("", False),
    ],
)  # fmt: skip
def test_an_old_request_or_one_that_is_no_time_makes_none(wanted: Any, made: bool) -> None:
    assert reader_step(job(wanted=wanted), [], NOW).create is made


def test_one_that_runs_is_left_until_it_ends_or_the_job_goes_on() -> None:
    there = pod()
    assert reader_step(job(), [there], NOW).remove == () and not reader_step(job(), [there], NOW).create
    assert reader_step(job(wanted=None), [pod(age_s=1e6)], NOW).remove == (), "it ends by itself"
    assert reader_step(job(), [pod("Failed")], NOW).wake_at == NOW + timedelta(seconds=FAILED_STAYS_S), "not at once"
    for phase in ("Succeeded", "Failed"):
        ended = pod(phase, FAILED_STAYS_S)
        assert reader_step(job(), [ended], NOW).remove == (ended,)
    assert reader_step(job(Phase.QUEUED), [there], NOW).remove == (there,), "it would keep the claim from its worker"
    assert reader_step(job(deletion_timestamp=NOW), [there], NOW).remove == (there,)
    going = pod(deletion_timestamp=NOW)
    step = reader_step(job(), [going], NOW)
    assert step.remove == () and not step.create, "its name is not free yet"


def test_one_that_never_starts_is_given_up() -> None:
    waiting = pod("Pending", STARTS_WITHIN_S - 10)
    step = reader_step(job(), [waiting], NOW)
    assert step.remove == () and step.wake_at == NOW + timedelta(seconds=10)
    late = pod("Pending", STARTS_WITHIN_S)
    assert reader_step(job(), [late], NOW).remove == (late,)
