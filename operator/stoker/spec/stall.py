"""After how long without progress a job is ended: the supervisor's limit, and the trainer's own within it.

Pure. Called by the operator, which passes both to the worker, and by the api's metrics.
"""

from __future__ import annotations

from .job import TrainingJobSpec
from .quantity import parse_duration

TRAINER_STALL_S = 600.0
"""The default of our trainer's watchdog (`STOKER_STALL_SECONDS`, docs/trainer.md)."""
MARGIN_S = 60.0
"""Between the two limits, so that one of them comes first."""


def stall_s(spec: TrainingJobSpec) -> float | None:
    """The supervisor's limit in seconds; None: there is none.

    A recipe has one always: its own watchdog is a thread, and can't end a rank that holds the interpreter's lock.
    """
    if spec.stall.after is not None:
        return parse_duration(spec.stall.after)
    if spec.trainer.recipe is None:
        return None
    return (_own_number(spec) or TRAINER_STALL_S) + MARGIN_S


def trainer_stall_s(spec: TrainingJobSpec) -> float | None:
    """The trainer's watchdog limit; None: its default, or what the job's own env says."""
    if spec.stall.after is None or "STOKER_STALL_SECONDS" in spec.env:
        return None
    return parse_duration(spec.stall.after) + MARGIN_S


def _own_number(spec: TrainingJobSpec) -> float | None:
    try:
        return float(spec.env["STOKER_STALL_SECONDS"])
    except (KeyError, ValueError):
        return None
