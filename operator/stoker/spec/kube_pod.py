"""What the operator writes on Kubernetes: the whole pod of a worker, and what stands beside it.

The write side of `pod.Pod`: subclasses with the fields that only a real kubelet needs. Never read back: what comes from
the cluster is the small view. Filled by `stoker.controller.render_kube`.

Source: Kubernetes core/v1 (Pod, Service, PersistentVolumeClaim); each field means what its namesake means there.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from .meta import Kind, Resource, StatusModel
from .pod import Container, Pod, PodSpec


class EmptyDir(StatusModel):
    medium: str | None = None
    size_limit: str | None = None


class HostFolder(StatusModel):
    path: str
    type: str | None = None


class ClaimSource(StatusModel):
    claim_name: str
    read_only: bool | None = None


class TokenProjection(StatusModel):
    audience: str
    expiration_seconds: int
    path: str


class Projection(StatusModel):
    service_account_token: TokenProjection


class Projected(StatusModel):
    sources: tuple[Projection, ...]
    default_mode: int | None = None


class Volume(StatusModel):
    """One source each; an administrator's own (`TrainingRuntime.volumes`) may be any that Kubernetes knows."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="allow", frozen=True
    )

    name: str
    empty_dir: EmptyDir | None = None
    host_path: HostFolder | None = None
    persistent_volume_claim: ClaimSource | None = None
    projected: Projected | None = None


class VolumeMount(StatusModel):
    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool | None = None


class Capabilities(StatusModel):
    add: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ("ALL",)


class SeccompProfile(StatusModel):
    type: str = "RuntimeDefault"


class ContainerSecurity(StatusModel):
    allow_privilege_escalation: bool = False
    privileged: bool = False
    run_as_non_root: bool = True
    read_only_root_filesystem: bool = True
    capabilities: Capabilities = Capabilities()


class PodSecurity(StatusModel):
    run_as_non_root: bool = True
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    seccomp_profile: SeccompProfile = SeccompProfile()


class KubeContainer(Container):
    image_pull_policy: str | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()
    security_context: ContainerSecurity = ContainerSecurity()
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "FallbackToLogsOnError"


class LocalRef(StatusModel):
    name: str


class KubeToleration(StatusModel):
    key: str | None = None
    operator: str = "Exists"
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class NodeRequirement(StatusModel):
    key: str
    operator: str = "In"
    values: tuple[str, ...]


class NodeTerm(StatusModel):
    match_fields: tuple[NodeRequirement, ...]


class NodeTerms(StatusModel):
    node_selector_terms: tuple[NodeTerm, ...]


class NodePreference(StatusModel):
    weight: int
    preference: NodeTerm


class NodeAffinity(StatusModel):
    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[NodePreference, ...] | None = None


class Affinity(StatusModel):
    node_affinity: NodeAffinity


class KubePodSpec(PodSpec):
    containers: tuple[KubeContainer, ...]
    init_containers: tuple[KubeContainer, ...] = ()
    volumes: tuple[Volume, ...] = ()
    affinity: Affinity | None = None
    tolerations: tuple[KubeToleration, ...] = ()
    node_selector: Mapping[str, str] = {}
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    service_account_name: str | None = None
    automount_service_account_token: bool = False
    image_pull_secrets: tuple[LocalRef, ...] = ()
    security_context: PodSecurity = PodSecurity()
    hostname: str | None = None
    subdomain: str | None = None
    host_network: bool | None = None
    dns_policy: str | None = None
    enable_service_links: bool = False


class KubePod(Pod):
    spec: KubePodSpec


class ServiceSpec(StatusModel):
    cluster_ip: str = "None"
    """Headless: the names of its pods, no address of its own."""
    publish_not_ready_addresses: bool = True
    selector: Mapping[str, str] = {}

    model_config = ConfigDict(
        alias_generator=lambda name: "clusterIP" if name == "cluster_ip" else to_camel(name),
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
    )


class Service(Resource):
    api_version: str = "v1"
    kind: str = "Service"
    spec: ServiceSpec = ServiceSpec()


SERVICES = Kind(Service, "v1", "Service", "services", namespaced=True)


class ClaimResources(StatusModel):
    requests: Mapping[str, str] = {}


class ClaimSpec(StatusModel):
    access_modes: tuple[str, ...] = ()
    resources: ClaimResources = ClaimResources()
    storage_class_name: str | None = None


class PersistentVolumeClaim(Resource):
    api_version: str = "v1"
    kind: str = "PersistentVolumeClaim"
    spec: ClaimSpec = ClaimSpec()


CLAIMS = Kind(PersistentVolumeClaim, "v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
