"""TrainingRuntime: how workers run on a cluster, by the administrator, for users to pick by name.

Users write no pod fields; all that a worker's pod gets beyond the job itself stands here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator

from .data import DataVolume
from .fields import DISTINCT, DnsLabel, EnvName, ImageName, ObjectName, Quantity
from .markers import Form, Keyed, repeated
from .meta import Kind, Resource, SpecModel
from .names import API_VERSION, GPU_RESOURCES
from .quantity import memory_bytes
from .worker_size import WorkerDefaults

DEFAULT_RUNTIME = "default"
MAX_ID = 2**31 - 1
MAX_TOLERATION_S = 2**31 - 1
CAPABILITY = Form(re.compile(r"[A-Z][A-Z0-9_]*"), "must be a Linux capability without CAP_, for example IPC_LOCK")


HOST_PATH = Form(
    re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+"),
    "must be an absolute path of letters, digits, '-', '_' and '.', of which no part begins with '.'",
)
CACHE_SAYS = "give either claim or hostPath"


def _capability(value: str) -> str:
    if not CAPABILITY.fits(value):
        raise ValueError(CAPABILITY.says)
    return value


def _host_path(value: str) -> str:
    if not HOST_PATH.fits(value):
        raise ValueError(HOST_PATH.says)
    return value


HostPath = Annotated[str, Field(max_length=1024), HOST_PATH, AfterValidator(_host_path)]
Capability = Annotated[str, Field(max_length=64), CAPABILITY, AfterValidator(_capability)]
_Label = Annotated[str, Field(min_length=1, max_length=316)]
_LabelValue = Annotated[str, Field(max_length=63)]


class Toleration(SpecModel):
    """A taint that workers may run on. Source: Kubernetes core/v1 Toleration."""

    key: str = Field(default="", max_length=316)
    """Empty, with operator Exists: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Exists: whatever the taint's value is."""
    value: str = Field(default="", max_length=63)
    """The taint's value, with operator Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Empty: every effect."""
    toleration_seconds: int | None = Field(default=None, ge=-MAX_TOLERATION_S, le=MAX_TOLERATION_S)
    """How long a worker may stay once the taint is there (NoExecute). Absent: for ever."""

    @model_validator(mode="after")
    def _as_the_api_server(self) -> Self:
        if not self.key and self.operator == "Equal":
            raise ValueError("a toleration without a key must have operator Exists")
        if self.value and self.operator == "Exists":
            raise ValueError("a toleration with operator Exists has no value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds belongs to effect NoExecute")
        return self


class AccessMode(StrEnum):
    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class ClaimTemplate(SpecModel):
    """A claim made for each job, and deleted with it."""

    size: Quantity
    """Bytes, for example 100Gi."""
    storage_class: ObjectName | None = None
    """Absent: the cluster's default."""
    access_mode: AccessMode = AccessMode.READ_WRITE_MANY
    """ReadWriteMany unless every job has one worker."""


class CheckpointStore(SpecModel):
    """Where jobs that name no claim keep checkpoints and output."""

    claim: ObjectName | None = None
    """A claim of this name in the job's project; each job has a folder of its own there."""
    template: ClaimTemplate | None = None
    """A claim made for each job, and deleted with it."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.claim is None) == (self.template is None):
            raise ValueError("give either claim or template")
        return self


class ExtraVolume(SpecModel):
    """A volume for every worker of the runtime, and where it is mounted."""

    name: DnsLabel
    """Its name within the runtime."""
    source: dict[str, JsonValue]
    """As in a pod's `volumes`, without its name: `{"hostPath": {"path": "/datasets"}}`."""
    mount_path: str = Field(min_length=1, max_length=1024)
    """Where workers find it."""
    sub_path: str = Field(default="", max_length=1024)
    """The folder within the volume that is shown. Empty: all of it."""
    read_only: bool = True
    """Workers can't write there."""


class OfferedData(SpecModel):
    """Data that jobs of the runtime may use by its name (`data[].path`)."""

    name: DnsLabel
    """What jobs call it."""
    source: dict[str, JsonValue]
    """As in a pod's `volumes`, without its name: `{"hostPath": {"path": "/datasets/imagenet"}}`."""
    sub_path: str = Field(default="", max_length=1024)
    """The folder within the volume that is shown. Empty: all of it."""
    read_only: bool = True
    """Workers can't write there. Else they can if their job says readOnly: false."""


class CacheVolume(SpecModel):
    """Where data that jobs name by url is kept, each project's in a folder of its own."""

    claim: ObjectName | None = None
    """A claim of this name in the job's project."""
    host_path: HostPath | None = None
    """A folder of the nodes, in which all users may make folders (mode 0777)."""
    limit: Quantity = "100Gi"
    """Bytes of each project's data there; what was used least goes first."""

    @property
    def limit_bytes(self) -> int:
        return memory_bytes(self.limit)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.claim is None) == (self.host_path is None):
            raise ValueError(CACHE_SAYS)
        return self


Named = TypeVar("Named", tuple[ExtraVolume, ...], tuple[OfferedData, ...])


class Security(SpecModel):
    """What workers run as. The defaults meet the *restricted* Pod Security Standard."""

    image_user: bool = False
    """Run as the user and group that the image names, by number and not root, instead of runAsUser and runAsGroup."""
    run_as_user: int = Field(default=65532, ge=1, le=MAX_ID)
    """The UID, never root."""
    run_as_group: int | None = Field(default=None, ge=1, le=MAX_ID)
    """The GID. Absent: the image's."""
    fs_group: int = Field(default=65532, ge=0, le=MAX_ID)
    """The GID that volumes are made writable for. 0: they stay as they are."""
    read_only_root: bool = True
    """The root file system can't be written; /tmp can."""
    add_capabilities: Annotated[tuple[Capability, ...], *DISTINCT] = Field(default=(), max_length=16)
    """IPC_LOCK for RDMA, say. All others are dropped."""
    seccomp: Literal["RuntimeDefault", "Unconfined"] = "RuntimeDefault"
    """The seccomp profile. Unconfined is for profilers, and breaks *restricted*."""


class TrainingRuntimeSpec(SpecModel):
    """What the pods of the runtime's jobs get beyond the job itself."""

    image: ImageName | None = None
    """For recipes, and for commands that name no image. Absent: the operator's trainer image."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes fetch images."""
    pull_secrets: Annotated[tuple[ObjectName, ...], *DISTINCT] = Field(default=(), max_length=16)
    """Secrets of these names in the job's project."""
    node_selector: dict[_Label, _LabelValue] = Field(default={}, max_length=32)
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32)
    """Taints that workers may run on."""
    runtime_class: ObjectName | None = None
    """The RuntimeClass of the pods. Absent: the cluster's default."""
    service_account: ObjectName | None = None
    """The ServiceAccount of the pods, in the job's project. Its token is not mounted. Absent: `default`."""
    priority_class: ObjectName | None = None
    """The PriorityClass of the pods, against other people's; within Stoker spec.priority of the job counts."""
    host_network: bool = False
    """Workers use the node's own network (for RDMA without a network plugin); breaks *restricted*."""
    defaults: WorkerDefaults = WorkerDefaults()
    """What workers get where neither the job nor its queue says it."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm of jobs that don't say it, counted as the worker's memory. Absent: half of the worker's
    memory."""
    extended_resources: dict[_Label, Annotated[int, Field(ge=1, le=1024)]] = Field(default={}, max_length=16)
    """Other countable resources of each worker, as nodes offer them: {"rdma/hca": 1}. Those of GPUs
    count for nothing: the job decides how many there are."""
    security: Security = Security()
    checkpoints: CheckpointStore | None = None
    """Absent: an empty folder that dies with the pod, of which the job's status warns."""
    volumes: Annotated[tuple[ExtraVolume, ...], Keyed("name")] = Field(default=(), max_length=32)
    """Volumes for every worker: data sets, caches, device folders."""
    data: Annotated[tuple[OfferedData, ...], Keyed("name")] = Field(default=(), max_length=64)
    """Data by name, for jobs that ask for it."""
    cache: CacheVolume | None = None
    """Absent: what jobs name by url is fetched by each worker for itself."""
    env: dict[EnvName, Annotated[str, Field(max_length=32_768)]] = Field(default={}, max_length=64)
    """NCCL's settings, say; a job's own env comes on top."""
    projects: Annotated[tuple[DnsLabel, ...], *DISTINCT] | None = Field(default=None, max_length=1024)
    """Who may use it. Absent: every project."""
    default_for: Annotated[tuple[DnsLabel, ...], *DISTINCT] = Field(default=(), max_length=1024)
    """Projects whose jobs name no runtime get this one, not `default`; of several, that whose name comes first."""

    @property
    def other_devices(self) -> dict[str, int]:
        return {name: count for name, count in self.extended_resources.items() if not GPU_RESOURCES.fits(name)}

    @field_validator("volumes", "data")
    @classmethod
    def _named_apart(cls, value: Named, info: ValidationInfo) -> Named:
        if repeated(one.name for one in value) is not None:
            raise ValueError(f"two entries of {info.field_name} have the same name")
        return value


class TrainingRuntime(Resource):
    """How workers run on this cluster, by its administrator, for jobs to pick by name."""

    api_version: str = API_VERSION
    kind: str = "TrainingRuntime"
    spec: TrainingRuntimeSpec = TrainingRuntimeSpec()


def effective_runtime(named: str | None, project: str, runtimes: Iterable[TrainingRuntime]) -> str:
    """The name of the runtime that a job of the project runs in.

    What it names; else the runtime that has the project in its `defaultFor`, of several the one whose name comes first;
    else `default`, which need not exist.
    """
    if named is not None:
        return named
    claiming = (runtime.metadata.name for runtime in runtimes if project in runtime.spec.default_for)
    return min(claiming, default=DEFAULT_RUNTIME)


def missing_data(data: Iterable[DataVolume], runtime: TrainingRuntimeSpec | None) -> list[str]:
    """What a job asks for by `path` and its runtime does not offer. None: the built-in one, or one machine, where a
    path may be a folder."""
    if runtime is None:
        return [one.path for one in data if one.path is not None and not one.path.startswith("/")]
    offered = {one.name for one in runtime.data}
    return [one.path for one in data if one.path is not None and one.path not in offered]


def checkpoint_claim(job: str, named: str | None, runtime: TrainingRuntimeSpec) -> str | None:
    """The claim that keeps a job's checkpoints and output: what it names itself, else by its runtime.

    None: they die with its pods.
    """
    if named is not None or runtime.checkpoints is None:
        return named
    return runtime.checkpoints.claim or own_claim(job)


def own_claim(job: str) -> str:
    """What the claim is called that is made from a runtime's template for a job of this name."""
    return f"{job}-checkpoints"


RUNTIMES = Kind(TrainingRuntime, API_VERSION, "TrainingRuntime", "trainingruntimes", namespaced=False)
