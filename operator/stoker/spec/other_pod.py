"""Pods that are not Stoker's, as far as they take room on nodes or a name that a worker needs."""

from __future__ import annotations

from collections.abc import Mapping

from .meta import Kind, Resource, StatusModel
from .pod import Resources


class OtherContainer(StatusModel):
    resources: Resources = Resources()
    restart_policy: str = ""
    """`Always` on an init container: a sidecar, which runs on beside the others."""


class OtherPodSpec(StatusModel):
    node_name: str = ""
    containers: tuple[OtherContainer, ...] = ()
    init_containers: tuple[OtherContainer, ...] = ()
    overhead: Mapping[str, str] = {}
    resources: Resources = Resources()
    """The pod's own: what they name counts instead of the containers' sum."""


class OtherPod(Resource):
    """Only what the scheduler's arithmetic needs (core/v1 Pod); one that has ended asks for nothing."""

    api_version: str = "v1"
    kind: str = "Pod"
    spec: OtherPodSpec


OTHER_PODS = Kind(OtherPod, "v1", "Pod", "pods", namespaced=True)
