"""The pods of a gang under way, job `j` of project `p`, as the lifecycle sees them. Shared by its tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from stoker.life.lifecycle import step
from stoker.life.step import Settings, Step
from stoker.spec.job import TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import (
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodPhase,
    PodSpec,
    PodStatus,
    Terminated,
)
from stoker.spec.worker import ExitRecord

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def pod(worker: int, ended: ExitRecord | None = None, *, lost: bool = False) -> Pod:
    """Of the first attempt. `ended`: with this record; `lost`: without any."""
    over = ended is not None or lost
    message = ended.model_copy(update={"pod_uid": f"pod-{worker}"}).model_dump_json(by_alias=True) if ended else ""
    code = ended.exit_code if ended else 137
    state = ContainerState(terminated=Terminated(exit_code=code, message=message)) if over else ContainerState()
    return Pod(
        metadata=ObjectMeta(
            name=f"j-1-{worker}",
            namespace="p",
            uid=f"pod-{worker}",
            finalizers=(FINALIZER_OUTCOME,),
        ),
        spec=PodSpec(node_name=f"n{worker}", containers=(Container(),)),
        status=PodStatus(
            phase=PodPhase.FAILED if over else PodPhase.RUNNING,
            start_time=NOW - timedelta(seconds=120),
            container_statuses=(ContainerStatus(state=state),),
        ),
    )


def go(subject: TrainingJob, pods: Sequence[Pod]) -> Step:
    return step(subject, pods, NOW, Settings())
