"""Where a job is in its life. Imports no Pydantic: the command line starts with it."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})
PLACED = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
