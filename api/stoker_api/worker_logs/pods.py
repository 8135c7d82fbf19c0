"""What a pod says of its worker's log: whose it is, since when it may grow, how long it got. Pure."""

from __future__ import annotations

from pydantic import ValidationError

from stoker.spec.pod import CONTAINER, Pod
from stoker.spec.worker import ExitRecord
from stoker.spec.worker_pod import identity

from .stored import LogOwner


def exit_record(pod: Pod) -> ExitRecord | None:
    """What the pod's supervisor said at its end; None: nothing, or nothing of ours."""
    terminated = pod.terminated
    try:
        record = ExitRecord.model_validate_json(terminated.message) if terminated is not None else None
    except ValidationError:
        return None
    return record if record is not None and record.pod_uid == pod.uid else None


def owner_of(pod: Pod) -> LogOwner | None:
    worker = identity(pod.metadata)
    return LogOwner(**worker._asdict()) if worker is not None else None


def running_since_s(pod: Pod) -> float | None:
    for status in pod.status.container_statuses:
        running = status.state.running
        if status.name == CONTAINER and running is not None and running.started_at is not None:
            return running.started_at.timestamp()
    return None
