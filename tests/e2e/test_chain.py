"""The whole chain by the same scripts that make the record in docs/verify.md, on a smaller scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nvml_scenario import NoCompiler, library
from tools.verify import accounting, crash_sweep, elastic, gang, sigkill, suspend, thousand, user_scripts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_six_jobs_on_two_gpus_never_use_more_and_gangs_run_whole_or_not_at_all(tmp_path: Path) -> None:
    gang.check(tmp_path / "data")


def test_users_scripts_end_as_they_should_and_leave_nothing(tmp_path: Path) -> None:
    user_scripts.check(tmp_path / "data")


def test_killed_again_and_again_nothing_is_lost_or_run_twice(tmp_path: Path) -> None:
    figures = sigkill.check(tmp_path, kills=3)
    assert figures["jobs"]


def test_every_gpu_second_and_joule_is_in_one_account_whatever_is_killed(tmp_path: Path) -> None:
    try:
        library()
    except NoCompiler as error:
        pytest.skip(str(error))
    accounting.check(tmp_path)


def test_a_hundred_trivial_jobs_are_all_accounted_for(tmp_path: Path) -> None:
    thousand.check(tmp_path / "data", jobs=100, connections=8)


@pytest.mark.parametrize(
    ("side", "call"),
    [("after", "store.create TrainingJob:1"), ("before", "store.create Pod:1"), ("after", "agent.spawn:1")],
)
def test_killed_at_a_call_that_matters_the_job_still_runs_once(tmp_path: Path, call: str, side: str) -> None:
    """Three of the calls that `make verify` goes through on both sides, each."""
    assert crash_sweep.outcome(tmp_path, call, side)["killed"] == "yes"


@pytest.mark.sweep  # a minute, and beside tests/controller/test_preemption.py it adds the trainer's bits
@pytest.mark.torch
def test_a_preempted_job_goes_on_with_the_very_same_bits(tmp_path: Path) -> None:
    suspend.check(tmp_path, stops=2, how="preempt", workers=1, epochs=10)


@pytest.mark.torch
def test_a_suspended_gang_goes_on_with_the_very_same_bits(tmp_path: Path) -> None:
    """Other ways to stop it and more of them: `make verify`; of the trainer alone: tests/trainer/test_process.py."""
    suspend.check(tmp_path, stops=1, how="suspend", workers=2, epochs=10)


@pytest.mark.torch
def test_an_elastic_training_sees_the_samples_of_one_that_was_never_resized(tmp_path: Path) -> None:
    elastic.check(tmp_path, steps=5)
