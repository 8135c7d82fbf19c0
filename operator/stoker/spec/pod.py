"""Pod: the part of Kubernetes' v1 Pod that Stoker writes and reads. The node agent plays kubelet on the same shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from pydantic import Field

from .meta import Kind, Resource, SeenTime, StatusModel

CONTAINER = "worker"
DATA_CONTAINER = "stoker-data"
"""The init container that fetches the job's data; on one machine the node agent reports its child under this name."""
METRICS_PORT_NAME = "metrics"
"""Of the container's port where a trainer serves /metrics: what Prometheus' own discovery looks for."""


class FieldRef(StatusModel):
    field_path: str


class SecretKeyRef(StatusModel):
    name: str
    key: str


class EnvSource(StatusModel):
    """One of them."""

    field_ref: FieldRef | None = None
    secret_key_ref: SecretKeyRef | None = None


class EnvVar(StatusModel):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class Resources(StatusModel):
    requests: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}


class ContainerPort(StatusModel):
    name: str = ""
    container_port: int


class Container(StatusModel):
    name: str = CONTAINER
    image: str = ""
    command: tuple[str, ...] = ()
    working_dir: str | None = None
    env: tuple[EnvVar, ...] = ()
    resources: Resources = Resources()
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None
    """Of an init container: `Always` makes it a sidecar."""


class PodSpec(StatusModel):
    node_name: str = ""
    """Where it is to run. On Kubernetes rendered as required node affinity by `metadata.name`."""
    containers: tuple[Container, ...]
    termination_grace_period_seconds: int = Field(default=30)
    restart_policy: str = "Never"
    init_containers: tuple[Container, ...] | None = None
    overhead: Mapping[str, str] | None = None
    """By its RuntimeClass; what the cluster says, never what we write. So are the pod's own `resources`."""
    resources: Resources | None = None


class Terminated(StatusModel):
    exit_code: int
    signal: int | None = None
    reason: str = ""
    message: str = ""
    """The worker's exit record as JSON (at most 4,096 bytes there, so without its progress summary if too long)."""
    started_at: SeenTime | None = None
    finished_at: SeenTime | None = None


class Waiting(StatusModel):
    reason: str = ""
    """ContainerCreating, PodInitializing, ErrImagePull, ImagePullBackOff, CreateContainerConfigError, …"""
    message: str = ""


class Running(StatusModel):
    started_at: SeenTime | None = None


class ContainerState(StatusModel):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class DeviceHealth(StatusModel):
    resource_id: str = Field(default="", alias="resourceID")
    """As its device plug-in names it."""
    health: str = ""
    """Healthy, Unhealthy or Unknown."""
    message: str = ""


class AllocatedResource(StatusModel):
    """Source: KEP-4680 (ResourceHealthStatus, on by default from Kubernetes 1.36)."""

    name: str = ""
    resources: tuple[DeviceHealth, ...] = ()


class ContainerStatus(StatusModel):
    name: str = CONTAINER
    state: ContainerState = ContainerState()
    allocated_resources_status: tuple[AllocatedResource, ...] = ()


class PodCondition(StatusModel):
    """Source: Kubernetes "Pod Lifecycle" (PodScheduled, PodReadyToStartContainers, DisruptionTarget)."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: SeenTime | None = None


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> PodPhase:
        """A pod that is in no phase we know has not ended, for all we know."""
        return cls.UNKNOWN


class PodStatus(StatusModel):
    phase: PodPhase = PodPhase.PENDING
    reason: str = ""
    """`Rejected` and the kubelet's own reasons (Evicted, UnexpectedAdmissionError, …) when no container was started."""
    message: str = ""
    start_time: SeenTime | None = None
    pod_ip: str | None = Field(default=None, alias="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Resource):
    api_version: str = "v1"
    kind: str = "Pod"
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Its processes are gone: what it held is free."""
        return self.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def unhealthy_devices(self) -> Iterator[DeviceHealth]:
        """Those it has whose plug-in reports it, through the kubelet."""
        for status in self.status.container_statuses:
            for allocated in status.allocated_resources_status:
                yield from (device for device in allocated.resources if device.health == "Unhealthy")

    @property
    def terminated(self) -> Terminated | None:
        for status in self.status.container_statuses:
            if status.name == CONTAINER:
                return status.state.terminated
        return None


PODS = Kind(Pod, "v1", "Pod", "pods", namespaced=True)

REJECTED = "Rejected"
"""PodStatus.reason when our node agent could not lease what the pod asks for."""

NEVER_STARTED = "Cancelled"
"""PodStatus.reason when the pod was deleted before any process of it was started."""
