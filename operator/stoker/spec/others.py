"""Pods that are not Stoker's, as far as they take room on nodes."""

from __future__ import annotations

from collections.abc import Mapping

from .meta import Kind, Resource, StatusModel
from .names import LABEL_JOB_UID
from .pod import Resources


class _Container(StatusModel):
    resources: Resources = Resources()
    restart_policy: str = ""
    """`Always` on an init container: a sidecar, which runs on beside the others."""


class OtherPodSpec(StatusModel):
    node_name: str = ""
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    overhead: Mapping[str, str] = {}
    resources: Resources = Resources()
    """The pod's own: what they name counts instead of the containers' sum."""


class OtherPod(Resource):
    """Source: Kubernetes core/v1 Pod; only what the scheduler's arithmetic needs."""

    api_version: str = "v1"
    kind: str = "Pod"
    spec: OtherPodSpec


OTHER_PODS = Kind(
    OtherPod,
    "v1",
    "Pod",
    "pods",
    namespaced=True,
    label_selector=f"!{LABEL_JOB_UID}",
    field_selector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
)
