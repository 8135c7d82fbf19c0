"""What a job's status says once it has a place. Pure. Called by the controller's loops that place jobs."""

from __future__ import annotations

from datetime import datetime

from stoker.spec.job import Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.outcome import Intent
from stoker.spec.reasons import Code

from .admission import without_accepted
from .conditions import with_scheduled


def placed_status(job: TrainingJob, placement: tuple[Placed, ...], gpu_type: str, now: datetime) -> TrainingJobStatus:
    """With its next attempt and where that goes."""
    nodes = sorted({placed.node for placed in placement})
    new = job.status.model_copy(
        update={
            "phase": Phase.STARTING,
            "reason": Code.PLACED,
            "message": f"placed on {nodes[0] if len(nodes) == 1 else f'{len(nodes)} nodes'}",
            "attempt": job.status.attempt + 1,
            "intent": Intent.NONE,
            "placement": placement,
            "gpu_type": gpu_type,
            "placed_at": now,
            "reservation": None,
            "claim": None,
            "queued_at": job.status.queued_at or job.metadata.creation_timestamp,
            "not_before": None,
            "observed_generation": job.metadata.generation,
            "observed_retry_generation": job.spec.retry_generation,
        }
    )
    return with_scheduled(without_accepted(new), now, job.metadata.generation)
