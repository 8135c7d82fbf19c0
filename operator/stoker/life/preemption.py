"""Claims seen from the lifecycle: whose claim stops an attempt or has it go on with fewer workers, and what is said.

Pure. Owns when a claim counts and its sentences. Called by `intents`, the controller (which job is stopped for which)
and `stoker.why`.
"""

from __future__ import annotations

from stoker.spec.job import Claim, Phase, TrainingJob, Victim
from stoker.spec.meta import Key
from stoker.spec.reasons import Code

_NAMED = 3


def victims_of(job: TrainingJob) -> tuple[Key, ...]:
    """The jobs that are to be stopped for this one, as long as it waits and wants to run."""
    claim = job.status.claim
    if claim is None or job.status.phase is not Phase.QUEUED or job.spec.suspend or job.spec.cancel:
        return ()
    return () if job.metadata.deletion_timestamp is not None else tuple(victim.key for victim in claim.victims)


def victim_of(job: TrainingJob, claimant: TrainingJob) -> Victim | None:
    """What the claim says about the attempt that is under way; None: nothing."""
    claim = claimant.status.claim
    found = () if claim is None else claim.victims
    ours = (one for one in found if (one.key, one.uid, one.attempt) == (job.key, job.uid, job.status.attempt))
    return next(ours, None)


def claim_message(job: TrainingJob, claim: Claim) -> str:
    """What a job that preempts waits for, or one that is resized."""
    nodes = sorted({placed.node for placed in claim.placement})
    where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes"
    if not claim.victims:
        return f"goes on with {len(claim.placement)} of {job.spec.workers} workers on {where}"
    names = [_named(job, one) for one in claim.victims]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    again = f" (planned anew {claim.replans}x: pods outside Stoker took the room)" if claim.replans else ""
    what = f"job{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"
    return f"preempts {what}: starts on {where} as soon as they have saved and ended{again}"[:1024]


def _named(job: TrainingJob, victim: Victim) -> str:
    name = victim.name if victim.namespace == job.metadata.namespace else str(victim.key)
    return f"{name} (goes on with {len(victim.keeps)})" if victim.keeps else name


def preempted_as(job: TrainingJob, claimant: TrainingJob) -> Code:
    """Reclaimed: for another queue, which is owed what it is guaranteed. Preempted: within the queue."""
    return Code.PREEMPTED if job.spec.queue == claimant.spec.queue else Code.RECLAIMED


def preempted_message(claimant: TrainingJob) -> str:
    """Of an attempt that is stopped for it."""
    return f"preempted for {_claimant_named(claimant)}"


def shrunk_message(job: TrainingJob, keeps: int, claimant: TrainingJob) -> str:
    """Of one that makes room for it by going on with fewer workers."""
    return f"goes on with {keeps} of {job.workers} workers: the others make room for {_claimant_named(claimant)}"


def grown_message(job: TrainingJob, workers: int) -> str:
    """Of one that is stopped so that it goes on with more."""
    return f"goes on with {workers} workers instead of {job.workers}: GPUs are idle"


def _claimant_named(claimant: TrainingJob) -> str:
    return f"job {claimant.metadata.name} (project {claimant.metadata.namespace})"
