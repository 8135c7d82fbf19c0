"""A job, the pod that it is rendered to, and what tests read in that."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stoker.controller.render_kube import ClusterSettings, render_pod
from stoker.spec.job import Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.runtime import TrainingRuntimeSpec

SETTINGS = ClusterSettings(
    control_image="registry.example/stoker:1",
    trainer_image="registry.example/stoker-trainer:1",
    api_url="http://stoker-api.stoker.svc",
    node_lost_s=45,
)


def job(workers: int = 1, **spec: Any) -> TrainingJob:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    return TrainingJob(
        metadata=ObjectMeta(name="net", namespace="team-a", uid="u-1", creation_timestamp=at),
        spec={"trainer": {"command": ["python", "train.py"]}, "workers": workers} | spec,
        status=TrainingJobStatus(
            phase=Phase.STARTING,
            attempt=3,
            placement=tuple(Placed(worker=w, node=f"gpu-{w}") for w in range(workers)),
        ),
    )


def pod(subject: TrainingJob, worker: int = 0, **runtime: Any) -> dict[str, Any]:
    return render_pod(subject, worker, TrainingRuntimeSpec.model_validate(runtime), SETTINGS).dump()


def env(rendered: dict[str, Any]) -> dict[str, Any]:
    return {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in one else one["value"]
        for one in rendered["spec"]["containers"][0]["env"]
    }


def mounts(rendered: dict[str, Any]) -> dict[str, str]:
    return {one["mountPath"]: one["name"] for one in rendered["spec"]["containers"][0]["volumeMounts"]}


def volume(rendered: dict[str, Any], path: str) -> dict[str, Any]:
    name = mounts(rendered)[path]
    return next(
        {k: v for k, v in one.items() if k != "name"} for one in rendered["spec"]["volumes"] if one["name"] == name
    )


def env_values(rendered: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in rendered["spec"]["containers"][0]["env"]}
