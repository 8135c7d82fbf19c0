"""A gang under way as the lifecycle sees it: job `j` of project `p`, its pods, and one step of its life."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from stoker.life.lifecycle import step
from stoker.life.step import Facts, Settings, Step
from stoker.spec.job import PLACED, Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import Container, Pod, PodPhase, PodSpec, PodStatus
from stoker.spec.reasons import Code
from stoker.spec.worker import ExitRecord

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FAILED = PodPhase.FAILED
SETTINGS = Settings(
    start_timeout_s=60,
    blame_s=120,
    notice_after_s=2,
    unschedulable_s=10,
    image_timeout_s=120,
    pull_timeout_s=1800,
    node_lost_s=60,
    lost_margin_s=10,
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(
    phase: Phase = Phase.RUNNING, *, workers: int = 1, since_s: float = 30, recipe: bool = False, **given: Any
) -> TrainingJob:
    """Placed `since_s` seconds ago on the nodes n0, n1, …, at work 10 s later. `given`: fields of status or spec."""
    spec = {name: given.pop(name) for name in list(given) if name not in TrainingJobStatus.model_fields}
    metadata = {"deletion_timestamp": NOW} if spec.pop("deleting", False) else {}
    status: dict[str, Any] = {"phase": phase, "reason": Code.PLACED, "attempt": 1}
    if phase in PLACED:
        status["placement"] = tuple(Placed(worker=w, node=f"n{w}") for w in range(workers))
        status["placed_at"] = ago(since_s)
        status["started_at"] = ago(since_s - 10) if phase is not Phase.STARTING else None
    trainer = {"recipe": "image-classification"} if recipe else {"command": ["true"]}
    return TrainingJob(
        metadata=ObjectMeta(name="j", namespace="p", uid="u1", creation_timestamp=ago(3600), **metadata),
        spec={"trainer": trainer, "workers": workers} | spec,  # type: ignore[arg-type]
        status=TrainingJobStatus(**(status | given)),
    )


def after(subject: TrainingJob, status: TrainingJobStatus | None) -> TrainingJob:
    """The job with this status."""
    assert status is not None
    return subject.model_copy(update={"status": status})


def pod(
    worker: int = 0, *, attempt: int = 1, bound: bool = True, deleted_at: datetime | None = None, **status: Any
) -> Pod:
    name = f"{attempt}-{worker}"
    return Pod(
        metadata=ObjectMeta(
            name=f"j-{name}",
            namespace="p",
            uid=f"pod-{name}",
            finalizers=(FINALIZER_OUTCOME,),
            deletion_timestamp=deleted_at,
        ),
        spec=PodSpec(node_name=f"n{worker}" if bound else "", containers=(Container(),)),
        status=PodStatus.model_validate(status),
    )


def running(worker: int = 0, **given: Any) -> Pod:
    statuses = [{"name": "worker", "state": {"running": {"startedAt": ago(5).isoformat()}}}]
    return pod(worker, phase="Running", startTime=ago(25).isoformat(), containerStatuses=statuses, **given)


def container(
    reason: str = "Error", code: int = 1, message: str | ExitRecord = "", started: bool = True
) -> dict[str, Any]:
    """The end of the worker's container, at the times of its record if it has one."""
    began, ended, text = ago(20), NOW, message
    if isinstance(message, ExitRecord):
        began, ended = (datetime.fromtimestamp(at, UTC) for at in (message.started_at, message.finished_at))
        text = message.model_dump_json(by_alias=True)
    terminated: dict[str, Any] = {"exitCode": code, "reason": reason, "message": text}
    if started:
        terminated |= {"startedAt": began.isoformat(), "finishedAt": ended.isoformat()}
    return {"containerStatuses": [{"name": "worker", "state": {"terminated": terminated}}]}


def record(code: int = 0, *, stop_requested: bool = False, **given: Any) -> ExitRecord:
    times = {"started_at": ago(20).timestamp(), "finished_at": NOW.timestamp()}
    made = {"pod_uid": "pod-1-0", "stop_requested": stop_requested, "exit_code": code, **times}
    return ExitRecord(**(made | given))


def ended(worker: int, said: ExitRecord, *, attempt: int = 1, deleted_at: datetime | None = None) -> Pod:
    """With this record of its supervisor's."""
    own = said.model_copy(update={"pod_uid": f"pod-{attempt}-{worker}"})
    phase = FAILED if said.exit_code else PodPhase.SUCCEEDED
    state = container(code=said.exit_code, message=own)
    return pod(worker, attempt=attempt, deleted_at=deleted_at, phase=phase, **state)


def done(worker: int = 0, *, deleted_at: datetime | None = None, **said: Any) -> Pod:
    return ended(worker, record(0, **said), deleted_at=deleted_at)


def failed(worker: int = 0, code: int = 1, *, attempt: int = 1, deleted_at: datetime | None = None, **said: Any) -> Pod:
    return ended(worker, record(code, **said), attempt=attempt, deleted_at=deleted_at)


def lost(worker: int = 0) -> Pod:
    """Ended without a record, and its container with it."""
    return pod(worker, phase=FAILED, **container("ContainerStatusUnknown", 137))


def go(
    subject: TrainingJob, *pods: Pod, now: datetime = NOW, lost: dict[str, datetime] | None = None, **facts: Any
) -> Step:
    return step(subject, pods, now, SETTINGS, Facts(lost=lost or {}, **facts))


def status_of(result: Step) -> TrainingJobStatus:
    assert result.status is not None
    assert not (result.create or result.stop or result.release or result.discard), "status is written first"
    return result.status
