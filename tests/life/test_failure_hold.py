"""A failed gang that is held: what its status and `stoker why` say, what is counted, and what ends it."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.life.step import Step
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.outcome import Category, Intent
from stoker.spec.reasons import Code
from stoker.spec.worker import ExitRecord, Held, Progress
from stoker.why.explain import explain

from . import gang
from .gang import NOW, after, ago, ended, go, lost, running

T = NOW.timestamp()
HELD = Held(since=T - 60, until=T + 540, exit_code=1, message="KeyError: 'lr'")


def job(phase: Phase = Phase.RUNNING, *, hold: Held | None = HELD, **given: Any) -> TrainingJob:
    """Running for 120 s."""
    status = {"reason": Code.WORKERS_RUNNING, "progress": Progress(at=T - 60, step=7, held=hold)}
    return gang.job(phase, since_s=130, **(status | given), on_failure={"hold": "10m"})


def record(*, held_s: float = 60, exit_code: int = 1, ran_s: float = 60, **given: Any) -> ExitRecord:
    began = T - 120
    times = {"started_at": began, "finished_at": began + ran_s + held_s, "held_s": held_s}
    return gang.record(exit_code, **times, **({"failed_at": began + ran_s} if exit_code else {}), **given)


def test_a_hold_is_reported_once() -> None:
    first = go(job(), running())
    assert first.status is not None and first.note is not None
    assert (first.status.phase, first.status.reason) == (Phase.RUNNING, Code.HELD)
    assert first.status.message == "failed (exit 1) and is held until 12:09:00 UTC: KeyError: 'lr'"
    assert (first.note.reason, first.note.warning) == ("Held", True)
    again = go(after(job(), first.status), running())
    assert again == Step(), "no more writes, and no pod is touched while it lasts"


@pytest.mark.parametrize(
    ("hold", "workers", "message"),
    [
        (HELD.model_copy(update={"exit_code": 137, "message": ""}), 1, "failed (signal 9) and is held until"),
        (HELD.model_copy(update={"worker": 1}), 2, "worker 1 failed (exit 1) and is held until"),
    ],
)
def test_its_message(hold: Held, workers: int, message: str) -> None:
    status = go(job(hold=hold, workers=workers), *(running(w) for w in range(workers))).status
    assert status is not None and status.message.startswith(message)


ENDS = [
    # name, intent, retries allowed, records of the workers, phase, reason, category
    ("its time is over", Intent.NONE, 0, [record()], Phase.FAILED, Code.FAILED, Category.USER_ERROR),
    ("… and a retry is left", Intent.NONE, 1, [record()], Phase.QUEUED, Code.BACKING_OFF, Category.USER_ERROR),
    ("cancelled", Intent.CANCEL, 1, [record()], Phase.CANCELLED, Code.CANCELLED, Category.USER_ERROR),
    ("suspended", Intent.SUSPEND, 1, [record()], Phase.SUSPENDED, Code.SUSPENDED, Category.USER_ERROR),
    ("stop.maxDuration ends it: the failure stays", Intent.MAX_DURATION, 0, [record()], Phase.FAILED, Code.FAILED,
     Category.USER_ERROR),
    ("… and is retried as it would have been", Intent.MAX_DURATION, 1, [record()], Phase.QUEUED, Code.BACKING_OFF,
     Category.USER_ERROR),
    ("preempted: the failure counts", Intent.PREEMPT, 0, [record()], Phase.FAILED, Code.FAILED, Category.USER_ERROR),
    ("maxDuration of one that had not failed", Intent.MAX_DURATION, 1,
     [record(held_s=0, ran_s=120, stop_requested=True)], Phase.FAILED, Code.FAILED, Category.MAX_DURATION),
    ("a peer of the failed one was asked to stop", Intent.NONE, 0,
     [record(held_s=0, ran_s=120, exit_code=143, stop_requested=True), record()], Phase.FAILED, Code.FAILED,
     Category.USER_ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("intent", "limit", "records", "phase", "reason", "category"), [end[1:] for end in ENDS],
                         ids=[end[0] for end in ENDS])  # fmt: skip
def test_what_becomes_of_it(intent, limit, records, phase, reason, category) -> None:
    given: dict[str, Any] = {"retry": {"rules": [{"categories": ["UserError"], "limit": limit}]}} if limit else {}
    asked = {"phase": Phase.STOPPING if intent is not Intent.NONE else Phase.RUNNING, "intent": intent}
    given |= {"cancel": intent is Intent.CANCEL, "suspend": intent is Intent.SUSPEND}
    subject = job(workers=len(records), ran_s=10, held_s=5, **asked, **given)
    new = go(subject, *(ended(w, said) for w, said in enumerate(records))).status
    assert new is not None
    assert (new.phase, new.reason, new.attempts[-1].category) == (phase, reason, category)
    assert new.attempts[-1].intent is intent
    held = max(ended.held_s for ended in records)
    assert (new.held_s, new.attempts[-1].held_s) == (5 + held, held)
    assert new.ran_s == 10 + 120 - held
    assert new.held is None, "over, whatever the api has still to clear"


def test_a_worker_lost_while_it_was_held() -> None:
    new = go(job(), lost()).status
    assert new is not None and new.attempts[-1].category is Category.NODE_LOST
    assert (new.held_s, new.ran_s) == (60, 60)


def test_max_duration_ends_a_hold() -> None:
    limited = job(reason=Code.HELD, stop={"maxDuration": "3m"})
    assert go(limited, running()).wake_at == NOW + timedelta(seconds=60)
    over = go(limited, running(), now=NOW + timedelta(seconds=60)).status
    assert over is not None and over.intent is Intent.MAX_DURATION


@pytest.mark.parametrize("given", [{"cancel": True}, {"suspend": True}])
def test_a_stop_ends_a_hold_at_once(given: dict[str, Any]) -> None:
    asked = go(job(**given), running()).status
    assert asked is not None and asked.phase is Phase.STOPPING
    stopping = after(job(**given), asked)
    assert [one.metadata.name for one in go(stopping, running()).stop] == ["j-1-0"]


@given(
    st.lists(
        st.builds(
            record,
            held_s=st.floats(0, 1e6),
            ran_s=st.floats(0, 1e6),
            exit_code=st.sampled_from([0, 1, 137]),
            stop_requested=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(Intent),
)
def test_what_ran_and_what_was_held_never_exceed_the_attempt(records: list[ExitRecord], intent: Intent) -> None:
    phase = Phase.RUNNING if intent is Intent.NONE else Phase.STOPPING
    new = go(
        job(phase, workers=len(records), intent=intent), *(ended(w, said) for w, said in enumerate(records))
    ).status
    assert new is not None
    lasted = max(one.finished_at for one in records) - min(one.started_at for one in records)
    assert new.ran_s >= 0 and new.held_s >= 0
    assert new.ran_s + new.held_s <= lasted + 0.01


def test_a_long_hold_makes_no_long_attempt_of_a_short_one() -> None:
    """The back-off doubles while attempts come to nothing, however long each was looked at."""
    rules = {"rules": [{"categories": ["UserError"], "limit": 9, "backoff": "10s"}]}
    waits, status = [], job().status
    again = {"phase": Phase.RUNNING, "started_at": ago(601), "progress": None}
    for _ in range(3):
        subject = after(job(retry=rules), status.model_copy(update=again))
        status = go(subject, ended(0, record(ran_s=1, held_s=600))).status or status
        assert status.not_before is not None
        waits.append((status.not_before - NOW).total_seconds())
    assert waits == [10, 20, 40]


def test_why(sched: SimpleNamespace) -> None:
    held = sched.job("x", 1, on=["a"])
    status = held.status.model_copy(update={"phase": Phase.RUNNING, "progress": Progress(at=T, held=HELD)})
    objects = [sched.node("a", 8), sched.queue(), held.model_copy(update={"status": status})]
    said = explain(sched.World().feed(*objects).state, sched.key("x"), sched.at(10))
    assert said.summary == (
        "not training any more on a: failed (exit 1) and is held until 12:09:00 UTC: KeyError: 'lr'"
    )
    assert said.hints[0].message == "`stoker exec x` opens a shell in the worker" and len(said.hints) == 3
