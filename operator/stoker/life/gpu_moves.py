"""When an attempt is moved off a sick GPU, and what is said of it.

Pure. Owns the default for each cause. Called by the controller, whose answer is a fact of the lifecycle's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.spec.gpu_health import GpuCause, GpuHealth, Move, SickCause
from stoker.spec.job import TrainingJob

MOVES: Mapping[str, Move] = {
    SickCause.OFF_THE_BUS: Move.NOW,
    SickCause.LOST: Move.NOW,
    SickCause.UNCONTAINED_ERROR: Move.NOW,
    SickCause.CONTAINED_ERROR: Move.NOW,
    SickCause.HARDWARE_FAULT: Move.NOW,
    SickCause.DEVICE_UNHEALTHY: Move.NOW,
    SickCause.REMAP_FAILED: Move.CHECKPOINT,
    SickCause.RECOVERY_ACTION: Move.CHECKPOINT,
    SickCause.REMAP_PENDING: Move.CHECKPOINT,
    SickCause.THROTTLED: Move.CHECKPOINT,
}
"""What is not listed (a newer api's cause): as at the next checkpoint."""


def parse_moves(rows: Iterable[str]) -> dict[str, Move]:
    """`MOVES` with options like 'Throttled=stay' before it. Raises: ValueError."""
    found = dict(MOVES)
    for row in rows:
        cause, _, move = row.partition("=")
        if cause not in found or move not in list(Move):
            listed = ", ".join(found)
            raise ValueError(f"'{row}': write CAUSE=now, CAUSE=checkpoint or CAUSE=stay; causes are {listed}")
        found[cause] = Move(move)
    return found


def moved_for(job: TrainingJob, sick: Iterable[tuple[str, GpuHealth]], moves: Mapping[str, Move]) -> str:
    """Why the attempt that is under way is to go on elsewhere, for people; '': it is not, or not yet.

    `sick`: (node, GPU). Only of what the attempt itself has: others of the node stay.
    """
    for node, gpu in sick:
        if not any((one.job_uid, one.attempt) == (job.uid, job.status.attempt) for one in gpu.holders):
            continue
        for cause in (one for one in gpu.causes if one.ends is None):
            move = moves.get(cause.code, Move.CHECKPOINT)
            if move is Move.NOW or (move is Move.CHECKPOINT and _has_saved_since(job, cause)):
                return f"GPU {gpu.index} of {node} is sick ({cause.message or cause.code}): the job goes on elsewhere"
    return ""


def _has_saved_since(job: TrainingJob, cause: GpuCause) -> bool:
    progress = job.status.progress
    saved = progress.checkpoint if progress is not None else None
    return saved is not None and saved.at is not None and saved.at > cause.since.timestamp()
