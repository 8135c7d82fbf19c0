"""A gang that makes no progress: what its status, its events and `stoker why` say, and what is the cause of its end."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.controller.render import worker_env
from stoker.life.step import Step
from stoker.sched.state import SchedulerState
from stoker.spec.job import Phase, TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.outcome import Category
from stoker.spec.reasons import Code
from stoker.spec.stall import stall_s, trainer_stall_s
from stoker.spec.worker import ExitRecord, Progress, Stalled
from stoker.why.explain import explain

from . import gang
from .gang import NOW, after, ended, go, running

T = NOW.timestamp()
WHY = "step 7 since 600 s (stall.after: 600 s)"
STALLED = Stalled(attempt=1, since=T - 600, until=T + 15, step=7, message=WHY)


def job(
    workers: int = 2, *, stalled: Stalled | None = STALLED, phase: Phase = Phase.RUNNING, **given: Any
) -> TrainingJob:
    """Running for 690 s."""
    status = {"reason": Code.WORKERS_RUNNING, "progress": Progress(at=T - 1, step=7, stalled=stalled)}
    return gang.job(phase, workers=workers, since_s=700, **(status | given), stall={"after": "10m"})


def record(exit_code: int, failed_at: float | None, **given: Any) -> ExitRecord:
    return gang.record(exit_code, started_at=T - 690, failed_at=failed_at, **given)


def test_a_stall_is_reported_once_while_it_lasts() -> None:
    first = go(job(), running(0), running(1))
    assert first.status is not None and first.note is not None
    assert (first.status.phase, first.status.reason) == (Phase.RUNNING, Code.STALLED)
    assert (first.note.reason, first.note.warning) == ("Stalled", True)
    assert WHY in first.note.message and "`stoker logs j --attempt 1 --worker N`" in first.note.message
    again = go(after(job(), first.status), running(0), running(1))
    assert again == Step(), "no more writes, and no pod is touched: the supervisors end their ranks"


def test_the_stall_of_an_attempt_before_says_nothing() -> None:
    assert job().status.stalled == STALLED and job(attempt=2).status.stalled is None
    assert job(phase=Phase.QUEUED).status.stalled is None


GANG = [
    # name, records, category, message
    ("the cause is the stall, not what its end did to others",
     [record(134, T - 20, signal=6, stalled=True, message=WHY), record(1, T - 4, message="connection reset")],
     Category.STALLED, f"worker 0: no progress for too long (signal 6): {WHY}"),
    ("nor that others were stopped",
     [record(78, T - 20, stalled=True, message=WHY), record(143, T - 1, stop_requested=True)],
     Category.STALLED, f"worker 0: no progress for too long (exit 78): {WHY}"),
    ("a failure before it is the cause",
     [record(134, T - 20, signal=6, stalled=True), record(1, T - 300, message="KeyError")],
     Category.USER_ERROR, "worker 1: exit 1: KeyError"),
]  # fmt: skip


@pytest.mark.parametrize(("records", "category", "text"), [case[1:] for case in GANG], ids=[case[0] for case in GANG])
def test_the_cause_of_a_gangs_end(records, category, text) -> None:
    done = go(job(stalled=None), *(ended(w, said) for w, said in enumerate(records)))
    assert done.status is not None and done.note is not None
    assert done.status.attempts[-1].category is category and done.status.message == text
    if category is Category.STALLED:
        assert done.status.phase is Phase.QUEUED and done.status.retries == {Category.STALLED: 1}
        assert done.before is not None and done.before.reason == "Stalled" and done.note.reason == "Requeued"
        assert WHY in done.before.message and "`stoker logs j --attempt 1" in done.before.message
    else:
        assert done.before is None


def test_what_was_reported_before_is_not_reported_again() -> None:
    records = [record(78, T - 20, stalled=True, message=WHY), record(78, T - 10, stalled=True)]
    done = go(job(reason=Code.STALLED), *(ended(w, said) for w, said in enumerate(records)))
    assert done.status is not None and done.before is None


def _why(subject: TrainingJob) -> Any:
    state = SchedulerState()
    state.observe_job(subject)
    return explain(state, subject.key, NOW)


def test_why() -> None:
    assert _why(job()).summary.startswith(f"stalled on n0 and n1: no progress: {WHY}; its workers save their stacks")
    over = go(job(1, stalled=None), ended(0, record(78, T - 20, stalled=True, message=WHY))).status
    assert over is not None
    hints = _why(after(job(1), over.model_copy(update={"phase": Phase.FAILED}))).hints
    stacks = "`stoker logs j --attempt 1` shows where its processes stood when that attempt stalled"
    assert [(str(hint.code), hint.message) for hint in hints] == [("Stalled", stacks)]


LIMITS = [
    # name, spec, the supervisor's limit, what the trainer gets
    ("a command has none", {"trainer": {"command": ["x"]}}, None, None),
    ("… but what it is given", {"trainer": {"command": ["x"]}, "stall": {"after": "90s"}}, 90, 150),
    ("a recipe has its watchdog, and we come later", {"trainer": {"recipe": "image-classification"}}, 660, None),
    ("… whatever its limit",
     {"trainer": {"recipe": "image-classification"}, "env": {"STOKER_STALL_SECONDS": "30"}}, 90, None),
    ("… even if that is none",
     {"trainer": {"recipe": "image-classification"}, "env": {"STOKER_STALL_SECONDS": "soon"}}, 660, None),
    ("what is given comes first",
     {"trainer": {"recipe": "image-classification"}, "stall": {"after": "5m"}}, 300, 360),
    ("… and the env's is the env's",
     {"trainer": {"recipe": "image-classification"}, "stall": {"after": "5m"}, "env": {"STOKER_STALL_SECONDS": "9"}},
     300, None),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "ours", "trainers"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_the_limits(spec, ours, trainers) -> None:
    found = TrainingJob(metadata=ObjectMeta(name="j", uid="u"), spec=spec, status=TrainingJobStatus(attempt=1))
    assert (stall_s(found.spec), trainer_stall_s(found.spec)) == (ours, trainers)
    shown = {name: value for name, value in worker_env(found, 0, "").items() if "STALL" in name}
    wanted = {
        "STOKER_STALL_AFTER_SECONDS": ours,
        "STOKER_STALL_SECONDS": trainers if "recipe" in spec["trainer"] else None,
    }
    assert shown == {name: f"{value}" for name, value in wanted.items() if value} | dict(found.spec.env)
