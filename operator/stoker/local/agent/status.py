"""From how a worker stands to its pod's status, as kubelet would write it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stoker.spec.pod import CONTAINER, DATA_CONTAINER, NEVER_STARTED, REJECTED, PodPhase
from stoker.spec.worker import ExitRecord

MESSAGE_MAX_BYTES = 4096  # what Kubernetes keeps of a termination message
LOST = "WorkerLost"
_KILLED = 137

Patch = dict[str, Any]


def running(started_at: float) -> Patch:
    return {"phase": PodPhase.RUNNING.value, "startTime": _when(started_at)}


def waiting(reason: str, message: str) -> Patch:
    """Nothing was started yet: something that the pod asks for is not there."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": PodPhase.PENDING.value, "containerStatuses": [{"name": CONTAINER, "state": state}]}


def fetching(now: datetime) -> Patch:
    """Its data is on the way."""
    return {"initContainerStatuses": [{"name": DATA_CONTAINER, "state": {"running": {"startedAt": now.isoformat()}}}]}


def not_fetched(message: str, now: datetime) -> Patch:
    ended = {"exitCode": 1, "reason": "Error", "message": message[:MESSAGE_MAX_BYTES], "finishedAt": now.isoformat()}
    return {
        "phase": PodPhase.FAILED.value,
        "initContainerStatuses": [{"name": DATA_CONTAINER, "state": {"terminated": ended}}],
    }


def rejected(message: str) -> Patch:
    """Nothing was started: the node can't give what the pod asks for."""
    return {"phase": PodPhase.FAILED.value, "reason": REJECTED, "message": message}


def never_started() -> Patch:
    return {
        "phase": PodPhase.FAILED.value,
        "reason": NEVER_STARTED,
        "message": "deleted before any process was started",
    }


def ended(record: ExitRecord) -> Patch:
    done = record.exit_code == 0
    return {
        "phase": (PodPhase.SUCCEEDED if done else PodPhase.FAILED).value,
        "startTime": _when(record.started_at),
        "message": record.message,
        "containerStatuses": [
            {
                "name": CONTAINER,
                "state": {
                    "terminated": {
                        "exitCode": record.exit_code,
                        "signal": record.signal,
                        "reason": "Completed" if done else "Error",
                        "message": _fitting(record),
                        "startedAt": _when(record.started_at),
                        "finishedAt": _when(record.finished_at),
                    }
                },
            }
        ],
    }


def lost(started_at: float | None, now: datetime) -> Patch:
    """The supervisor ended without an exit record: killed, or the machine went down."""
    terminated: Patch = {"exitCode": _KILLED, "reason": LOST, "finishedAt": now.isoformat()}
    patch: Patch = {
        "phase": PodPhase.FAILED.value,
        "reason": LOST,
        "message": "the worker's supervisor ended without an exit record: killed, or the machine restarted",
        "containerStatuses": [{"name": CONTAINER, "state": {"terminated": terminated}}],
    }
    if started_at is not None:
        patch["startTime"] = terminated["startedAt"] = _when(started_at)
    return patch


def _fitting(record: ExitRecord) -> str:
    """The record as JSON of at most 4,096 bytes: the summary goes first, then ranks and text are cut, then metrics."""
    text = _json(record)
    if len(text) > MESSAGE_MAX_BYTES and record.progress is not None:
        record = record.model_copy(update={"progress": record.progress.model_copy(update={"summary": {}})})
        text = _json(record)
    if len(text) > MESSAGE_MAX_BYTES:
        record = record.model_copy(update={"ranks": record.ranks[:8], "message": record.message[:300]})
        text = _json(record)
    if len(text) > MESSAGE_MAX_BYTES and record.progress is not None:
        record = record.model_copy(update={"progress": record.progress.model_copy(update={"metrics": {}})})
        text = _json(record)
    if len(text) > MESSAGE_MAX_BYTES:
        # 12 bytes a character outside the basic plane.
        text = _json(record.model_copy(update={"progress": None, "message": record.message[:200]}))
    return text


def _json(record: ExitRecord) -> str:
    """ASCII, so that a character is a byte."""
    return record.model_dump_json(by_alias=True, exclude_none=True, ensure_ascii=True)


def _when(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()
