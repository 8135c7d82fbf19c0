"""The outcome table holds what docs/worker-contract.md promises, and the docs say the same."""

from __future__ import annotations

import pytest

from stoker.spec.outcome import FREE, POLICIES, Category, ExitZero, Intent, Verdict, verdict, worker_category
from stoker.spec.worker import ExitRecord
from tools.generate import docs


def record(exit_code: int, *, signal: int | None = None, stop_requested: bool = False) -> ExitRecord:
    return ExitRecord(
        pod_uid="u", started_at=0, finished_at=1, stop_requested=stop_requested, exit_code=exit_code, signal=signal
    )


@pytest.mark.parametrize("code", [1, 2, 64, 75, 76, 77, 78, 79, 127, 255])
def test_every_exit_code_of_a_users_command_is_its_own_error(code: int) -> None:
    assert worker_category(record(code), rejected=False, own_trainer=False) is Category.USER_ERROR


def test_our_trainers_75_counts_only_if_a_stop_was_requested() -> None:
    assert worker_category(record(75), rejected=False, own_trainer=True) is Category.USER_ERROR
    asked = record(75, stop_requested=True)
    assert worker_category(asked, rejected=False, own_trainer=True) is Category.INTERRUPTED


@pytest.mark.parametrize("requested", [True, False])
@pytest.mark.parametrize("own_trainer", [True, False])
@pytest.mark.parametrize("meaning", list(ExitZero))
def test_exit_0_is_a_stop_only_of_a_command_after_a_request_where_the_job_says_so(
    meaning: ExitZero, own_trainer: bool, requested: bool
) -> None:
    ended = record(0, stop_requested=requested)
    stop = meaning is ExitZero.STOPPED and requested and not own_trainer
    expected = Category.INTERRUPTED if stop else None
    assert worker_category(ended, rejected=False, own_trainer=own_trainer, exit_zero=meaning) is expected


@pytest.mark.parametrize("own_trainer", [True, False])
@pytest.mark.parametrize(
    ("code", "signal", "stop_requested"),
    [(0, None, False), (75, None, True), (134, 6, False), (137, 9, True), (78, None, False)],
)
def test_a_stall_is_the_supervisors_word_whatever_the_command_left(code, signal, stop_requested, own_trainer) -> None:
    said = record(code, signal=signal, stop_requested=stop_requested).model_copy(update={"stalled": True})
    assert worker_category(said, rejected=False, own_trainer=own_trainer) is Category.STALLED
    assert worker_category(said, rejected=True, own_trainer=own_trainer) is Category.REJECTED


@pytest.mark.parametrize(
    ("ended", "category"),
    [
        (record(1), Category.OUT_OF_MEMORY),
        (record(1, stop_requested=True), Category.INTERRUPTED),
        (record(137, signal=9), Category.KILLED),
        (record(0), None),
    ],
    ids=["failed", "stopped", "killed", "done"],
)
def test_a_command_out_of_gpu_memory_is_so_where_it_failed_by_itself(ended: ExitRecord, category: Category) -> None:
    said = ended.model_copy(update={"out_of_memory": True})
    assert worker_category(said, rejected=False, own_trainer=False) is category


def test_no_record_is_a_lost_worker_whatever_the_container_said() -> None:
    assert worker_category(None, rejected=False, own_trainer=True) is Category.NODE_LOST


@pytest.mark.parametrize("intent", list(Intent))
def test_done_is_done_whatever_was_asked(intent: Intent) -> None:
    assert verdict(intent, None) is Verdict.SUCCEEDED


@pytest.mark.parametrize("category", list(Category))
def test_every_category_has_a_policy_and_a_verdict_under_every_intent(category: Category) -> None:
    assert POLICIES[category].says
    for intent in Intent:
        assert isinstance(verdict(intent, category), Verdict)


def test_what_would_only_come_again_is_never_retried() -> None:
    for category in (Category.BAD_CONFIG, Category.DIVERGED):
        for intent in (Intent.NONE, Intent.SUSPEND, Intent.PREEMPT):
            assert verdict(intent, category) is Verdict.FAILED
        assert not POLICIES[category].raisable


def test_what_the_cluster_did_spends_no_retries() -> None:
    theirs = {Category.REJECTED, Category.SECRET_MISSING, Category.START_TIMEOUT, Category.INTERRUPTED}
    assert theirs == FREE


def test_the_docs_show_this_table() -> None:
    assert docs.stale(write=False) == []
