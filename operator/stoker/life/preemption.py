"""Claims seen from the lifecycle: whose claim stops an attempt, and what is said about it.

Pure. Owns when a claim counts and its sentences. Called by `intents`, the controller (which job is stopped for which)
and `stoker.why`.
"""

from __future__ import annotations

from stoker.spec.job import Claim, Phase, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.reasons import Code

_NAMED = 3


def victims_of(job: TrainingJob) -> tuple[Key, ...]:
    """The jobs that are to be stopped for this one, as long as it waits and wants to run."""
    claim = job.status.claim
    if claim is None or job.status.phase is not Phase.QUEUED or job.spec.suspend or job.spec.cancel:
        return ()
    return () if job.metadata.deletion_timestamp is not None else tuple(victim.key for victim in claim.victims)


def is_stopped_for(job: TrainingJob, claimant: TrainingJob) -> bool:
    """The claim is about the attempt that is under way."""
    claim = claimant.status.claim
    found = () if claim is None else claim.victims
    return any((one.key, one.uid, one.attempt) == (job.key, job.uid, job.status.attempt) for one in found)


def claim_message(job: TrainingJob, claim: Claim) -> str:
    """What a job that preempts waits for."""
    names = [one.name if one.namespace == job.metadata.namespace else str(one.key) for one in claim.victims]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    nodes = sorted({placed.node for placed in claim.placement})
    where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes"
    again = f" (planned anew {claim.replans}x: pods outside Stoker took the room)" if claim.replans else ""
    what = f"job{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"
    return f"preempts {what}: starts on {where} as soon as they have saved and ended{again}"[:1024]


def preempted_as(job: TrainingJob, claimant: TrainingJob) -> Code:
    """Reclaimed: for another queue, which is owed what it is guaranteed. Preempted: within the queue."""
    return Code.PREEMPTED if job.spec.queue == claimant.spec.queue else Code.RECLAIMED


def preempted_message(claimant: TrainingJob) -> str:
    """Of an attempt that is stopped for it."""
    return f"preempted for job {claimant.metadata.name} (project {claimant.metadata.namespace})"
