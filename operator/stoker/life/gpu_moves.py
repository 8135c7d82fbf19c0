"""When an attempt is moved off a GPU that is sick or holds its gang back, and what is said of it.

Pure. Owns the default for each cause. Called by the controller, whose answer is a fact of the lifecycle's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from stoker.spec.gpu_health import GpuHealth, Move, SickCause
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
    SickCause.STRAGGLER: Move.CHECKPOINT,
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

    `sick`: (node, GPU). Only of what the attempt itself has: others of the node stay. A burn-in is there for it.
    """
    if job.status.burn_in is not None:
        return ""
    for node, gpu in sick:
        if not any((one.job_uid, one.attempt) == (job.uid, job.status.attempt) for one in gpu.holders):
            continue
        for cause in (one for one in gpu.causes if one.ends is None):
            move = moves.get(cause.code, Move.CHECKPOINT)
            if _is_due(job, move, cause.since):
                return f"GPU {gpu.index} of {node} is sick ({cause.message or cause.code}): the job goes on elsewhere"
    return ""


def held_back(job: TrainingJob, blamed: Iterable[tuple[str, GpuHealth]], moves: Mapping[str, Move]) -> tuple[str, str]:
    """The node that the attempt is to leave, since a GPU of it holds the gang back, and why, for people; '': none.

    `blamed`: (node, GPU). The GPU goes on for others.
    """
    for node, gpu in blamed:
        for one in gpu.blames:
            mine = (one.job_uid, one.attempt) == (job.uid, job.status.attempt)
            if mine and _is_due(job, moves.get(SickCause.STRAGGLER, Move.CHECKPOINT), one.at):
                return node, f"GPU {gpu.index} of {node} holds the gang back ({one.message}): the job goes on elsewhere"
    return "", ""


def _is_due(job: TrainingJob, move: Move, since: datetime) -> bool:
    progress = job.status.progress
    saved = progress.checkpoint if progress is not None else None
    has_saved = saved is not None and saved.at is not None and saved.at > since.timestamp()
    return move is Move.NOW or (move is Move.CHECKPOINT and has_saved)
