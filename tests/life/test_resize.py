"""An elastic job that is resized: the intent, the claim in which it goes on, and what its end counts as."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.life.step import Step
from stoker.spec.job import Claim, Phase, Placed, TrainingJob
from stoker.spec.outcome import Intent
from stoker.spec.pod import Pod
from stoker.spec.reasons import Code

from .gang import NOW, after, ago, done, failed, go, job, lost, running, status_of


def on(*nodes: str) -> tuple[Placed, ...]:
    return tuple(Placed(worker=i, node=node) for i, node in enumerate(nodes))


def elastic(phase: Phase = Phase.RUNNING, **given: Any) -> TrainingJob:
    """Two workers of those that it may have."""
    return job(phase, **({"workers": 2, "elastic": {"min": 1, "max": 4}} | given))


SHRINKS: dict[str, Any] = {
    "preempted_for": "goes on with 1 of 2 workers",
    "preempted_as": Code.RECLAIMED,
    "keeps": on("n0"),
}
LARGER = Claim(placement=on("n0", "n1", "n2"), victims=(), since=ago(9))


def test_one_that_shrinks_is_stopped_as_a_whole_and_its_claim_keeps_what_it_goes_on_with() -> None:
    first = go(elastic(), running(), running(1), **SHRINKS)
    status = status_of(first)
    assert (status.phase, status.intent, status.reason) == (Phase.STOPPING, Intent.RESIZE, Code.RESIZED)
    assert status.claim == Claim(placement=on("n0"), victims=(), since=NOW)
    assert status.message == "goes on with 1 of 2 workers" and len(status.placement) == 2
    stops = go(after(elastic(), status), running(), running(1), **SHRINKS)
    assert {pod.metadata.name for pod in stops.stop} == {"j-1-0", "j-1-1"}


def test_one_that_grows_is_stopped_once_its_claim_says_so() -> None:
    status = status_of(go(elastic(claim=LARGER), running(), running(1)))
    assert (status.phase, status.intent, status.claim) == (Phase.STOPPING, Intent.RESIZE, LARGER)
    assert status.message == "goes on with 3 workers instead of 2: GPUs are idle"
    assert go(elastic(), running(), running(1)) == Step(), "without a claim it stays as it is"


def stopped(worker: int = 0, **said: Any) -> Pod:
    return failed(worker, 75, stop_requested=True, **said)


ENDS = [
    # (case, job, pods, phase, reason, counts as, workers that it goes on with)
    ("it saved", {}, [stopped(), stopped(1)], Phase.QUEUED, Code.RESIZED, Intent.RESIZE, 1),
    ("it could not save within its grace", {}, [stopped(), stopped(1, grace_exceeded=True)], Phase.QUEUED,
     Code.RECLAIMED, Intent.PREEMPT, 1),
    ("its supervisor was killed", {}, [stopped(), lost(1)], Phase.QUEUED, Code.RECLAIMED, Intent.PREEMPT, 1),
    ("it grows, and could not save", {"claim": LARGER}, [stopped(), stopped(1, grace_exceeded=True)], Phase.QUEUED,
     Code.RESIZED, Intent.RESIZE, 3),
    ("it was done", {}, [done(), done(1)], Phase.SUCCEEDED, Code.COMPLETED, Intent.RESIZE, 0),
    ("cancelled meanwhile", {"intent": Intent.CANCEL}, [stopped(), stopped(1)], Phase.CANCELLED, Code.CANCELLED,
     Intent.CANCEL, 0),
    ("it failed by itself", {"intent": Intent.NONE, "claim": LARGER}, [failed(), stopped(1)], Phase.FAILED, Code.FAILED,
     Intent.NONE, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "pods", "phase", "reason", "counts_as", "workers"), [c[1:] for c in ENDS], ids=[c[0] for c in ENDS]
)
def test_what_follows(
    given: dict[str, Any], pods: list[Pod], phase: Phase, reason: Code, counts_as: Intent, workers: int
) -> None:
    claim = Claim(placement=on("n0"), victims=(), since=ago(9))
    asked = {"intent": Intent.RESIZE, "reason": Code.RESIZED, "claim": claim, "queued_at": ago(3000)} | given
    cancel = {"cancel": True} if asked["intent"] is Intent.CANCEL else {}
    status = status_of(go(elastic(Phase.STOPPING, gpus_per_worker=4, **asked, **cancel), *pods, **SHRINKS))
    assert (status.phase, status.reason, status.attempts[-1].intent) == (phase, reason, counts_as)
    assert (status.claim is not None and len(status.claim.placement)) == (workers or False)
    assert status.attained_gpu_seconds == pytest.approx(20 * 8), "of the workers that it had"
    if workers:
        assert status.claim is not None and status.claim.since == NOW
        assert (status.retries, status.not_before, status.queued_at) == ({}, None, ago(3000)), "nothing is spent"


def test_pods_and_ends_are_those_of_the_attempt_not_of_the_wish() -> None:
    starting = elastic(Phase.STARTING, workers=3, placement=on("n0", "n1"))
    assert go(starting).create == (0, 1)
    both = status_of(go(starting, running(), running(1)))
    assert (both.phase, both.message) == (Phase.RUNNING, "all 2 workers are running")
    over = status_of(go(after(starting, both), done(), done(1)))
    assert over.phase is Phase.SUCCEEDED and len(over.attempts[-1].workers) == 2


def test_a_resize_does_not_count_as_an_attempt_that_came_to_nothing() -> None:
    first = elastic(Phase.STOPPING, intent=Intent.RESIZE, claim=LARGER)
    resized = status_of(go(first, stopped(), stopped(1)))
    again = {"phase": Phase.RUNNING, "placement": on("n0", "n1"), "attempt": 2, "started_at": ago(20)}
    second = after(first, resized.model_copy(update=again))
    status = status_of(go(second, *(failed(w, 137, attempt=2, signal=9) for w in (0, 1))))
    assert status.not_before is not None
    assert (status.not_before - NOW).total_seconds() == 5, "the first back-off"
