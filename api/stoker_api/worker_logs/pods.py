"""Whose log a pod's is, and since when it may grow. Pure."""

from __future__ import annotations

from stoker.spec.pod import CONTAINER, Pod
from stoker.spec.worker_pod import identity

from .log_file import LogOwner


def owner_of(pod: Pod) -> LogOwner | None:
    worker = identity(pod.metadata)
    return LogOwner(**worker._asdict()) if worker is not None else None


def running_since_s(pod: Pod) -> float | None:
    for status in pod.status.container_statuses:
        running = status.state.running
        if status.name == CONTAINER and running is not None and running.started_at is not None:
            return running.started_at.timestamp()
    return None
