"""Claims as the lifecycle sees them: which attempts one has stopped, and as long as when."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.life.preemption import victim_of, victims_of
from stoker.spec.job import Claim, Phase, Placed, TrainingJob, Victim

from .gang import NOW, job

VICTIM = Victim(namespace="p", name="j", uid="u1", attempt=1)


def claimant(phase: Phase = Phase.QUEUED, **given: Any) -> TrainingJob:
    claim = Claim(placement=(Placed(worker=0, node="n0"),), victims=(VICTIM,), since=NOW)
    return job(phase, claim=claim, **given)


@pytest.mark.parametrize(
    ("subject", "stops"),
    [
        (claimant(), True),
        (claimant(suspend=True), False),
        (claimant(cancel=True), False),
        (claimant(deleting=True), False),
        (claimant(Phase.SUSPENDED), False),
        (claimant(Phase.STARTING), False),
    ],
    ids=["waits", "to be suspended", "to be cancelled", "on its way out", "suspended", "started"],
)
def test_a_claim_has_jobs_stopped_while_its_own_waits_and_wants_to_run(subject: TrainingJob, stops: bool) -> None:
    assert victims_of(subject) == ((VICTIM.key,) if stops else ())


@pytest.mark.parametrize(
    ("change", "is_meant"),
    [({}, True), ({"attempt": 2}, False), ({"uid": "another"}, False), ({"name": "another"}, False)],
)
def test_a_claim_means_one_attempt_of_one_job(change: dict[str, Any], is_meant: bool) -> None:
    named = VICTIM.model_copy(update=change)
    subject = claimant()
    claim = Claim(placement=(), victims=(named,), since=NOW)
    subject = subject.model_copy(update={"status": subject.status.model_copy(update={"claim": claim})})
    assert victim_of(job(), subject) == (named if is_meant else None)
