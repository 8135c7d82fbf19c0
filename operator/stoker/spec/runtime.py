"""TrainingRuntime: how workers run on a cluster, by the administrator, for users to pick by name.

Users write no pod fields; all that a worker's pod gets beyond the job itself stands here (DESIGN §3, §9).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from .meta import Kind, Resource, SpecModel
from .names import API_VERSION, DnsLabel, ImageName, ObjectName
from .quantity import Quantity

DEFAULT_RUNTIME = "default"

_Label = Annotated[str, Field(min_length=1, max_length=316)]
_LabelValue = Annotated[str, Field(max_length=63)]


class Toleration(SpecModel):
    """Source: Kubernetes core/v1 Toleration."""

    key: str = Field(default="", max_length=316)
    """Empty, with operator Exists: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = Field(default="", max_length=63)
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class AccessMode(StrEnum):
    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class ClaimTemplate(SpecModel):
    """A claim made for each job, and deleted with it."""

    size: Quantity
    storage_class: ObjectName | None = None
    """Absent: the cluster's default."""
    access_mode: AccessMode = AccessMode.READ_WRITE_MANY


class CheckpointStore(SpecModel):
    """Where jobs that name no claim keep checkpoints and output."""

    claim: ObjectName | None = None
    """A claim of this name in the job's project; each job has a folder of its own there."""
    template: ClaimTemplate | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.claim is None) == (self.template is None):
            raise ValueError("give either claim or template")
        return self


class ExtraVolume(SpecModel):
    """A volume for every worker of the runtime, and where it is mounted."""

    name: DnsLabel
    source: dict[str, JsonValue]
    """As in a pod's `volumes`, without its name: `{"hostPath": {"path": "/datasets"}}`."""
    mount_path: str = Field(min_length=1, max_length=1024)
    sub_path: str = Field(default="", max_length=1024)
    read_only: bool = True


class Security(SpecModel):
    """What workers run as. The defaults meet the *restricted* Pod Security Standard."""

    run_as_user: int | None = Field(default=65532, ge=1)
    """Absent (null): the image's own user, which must not be root."""
    run_as_group: int | None = Field(default=None, ge=1)
    fs_group: int | None = Field(default=65532, ge=1)
    read_only_root: bool = True
    add_capabilities: tuple[Annotated[str, Field(pattern=r"^[A-Z_]+$")], ...] = Field(default=(), max_length=16)
    """IPC_LOCK for RDMA, say. All others are dropped."""
    seccomp: Literal["RuntimeDefault", "Unconfined"] = "RuntimeDefault"


class TrainingRuntimeSpec(SpecModel):
    image: ImageName | None = None
    """For recipes, and for commands that name no image. Absent: the operator's trainer image."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    pull_secrets: tuple[ObjectName, ...] = Field(default=(), max_length=16)
    """Secrets of these names in the job's project."""
    node_selector: dict[_Label, _LabelValue] = Field(default={}, max_length=32)
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32)
    runtime_class: ObjectName | None = None
    service_account: ObjectName | None = None
    """In the job's project. Its token is not mounted. Absent: `default`."""
    priority_class: ObjectName | None = None
    host_network: bool = False
    shared_memory: Quantity | None = None
    """Size of /dev/shm, counted as the worker's memory. Absent: half of the worker's memory."""
    extended_resources: dict[_Label, Annotated[int, Field(ge=1, le=1024)]] = Field(default={}, max_length=16)
    """Per worker: {"rdma/hca": 1}."""
    security: Security = Security()
    checkpoints: CheckpointStore | None = None
    """Absent: an empty folder that dies with the pod, of which the job's status warns."""
    volumes: tuple[ExtraVolume, ...] = Field(default=(), max_length=32)
    env: dict[str, str] = Field(default={}, max_length=64)
    """NCCL's settings, say; a job's own env comes on top."""
    projects: tuple[DnsLabel, ...] | None = Field(default=None, max_length=1024)
    """Who may use it. Absent: every project."""


class TrainingRuntime(Resource):
    api_version: str = API_VERSION
    kind: str = "TrainingRuntime"
    spec: TrainingRuntimeSpec = TrainingRuntimeSpec()


RUNTIMES = Kind(TrainingRuntime, API_VERSION, "TrainingRuntime", "trainingruntimes", namespaced=False)
