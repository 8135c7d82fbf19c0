"""TrainingJob: what a user asks for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .meta import Condition, Kind, Resource, SpecModel, StatusModel
from .names import API_VERSION, DEFAULT_QUEUE, DnsLabel, EnvName, ImageName, ObjectName
from .outcome import POLICIES, Category, Intent
from .quantity import Duration, Quantity, cpu_milli, memory_bytes
from .reasons import Code
from .recipes import RECIPES, resolve
from .worker import Progress

MAX_WORKERS = 4096
MAX_GPUS_PER_WORKER = 64
MAX_PRIORITY = 1_000_000


class Precision(StrEnum):
    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class GpuRequest(SpecModel):
    """Which GPUs will do. Empty: any."""

    models: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(default=(), max_length=16)
    """Model names as `stoker get nodes` shows them; one of them must be part of the GPU's name, case ignored."""
    min_memory: Quantity | None = None
    """Memory of each GPU."""


class Trainer(SpecModel):
    """What runs: a recipe of ours with its config, or a command of the user's."""

    recipe: str | None = None
    config: dict[str, JsonValue] = {}
    image: ImageName | None = None
    """The container image to run the command in; on a cluster only. Absent: the runtime's."""
    command: tuple[Annotated[str, Field(max_length=131_072)], ...] | None = Field(default=None, max_length=1024)
    working_dir: str | None = Field(default=None, max_length=4096)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.recipe is None) == (self.command is None):
            raise ValueError("give either recipe (with config) or command (with workingDir)")
        if self.recipe is not None:
            if self.working_dir is not None or self.image is not None:
                raise ValueError("workingDir and image belong to command; a recipe has its own")
            if self.recipe not in RECIPES:
                raise ValueError(f"there is no recipe {self.recipe!r}; there is: {', '.join(sorted(RECIPES))}")
            _check_config(self.recipe, self.config)
        elif self.config:
            raise ValueError("config belongs to recipe; give a command its settings as arguments or env")
        elif not self.command or not self.command[0]:
            raise ValueError("command must name a program")
        return self


class Target(SpecModel):
    """Stop as soon as an evaluation reaches this."""

    metric: Literal["accuracy"] = "accuracy"
    value: float = Field(gt=0, le=1)


class Stop(SpecModel):
    max_duration: Duration | None = None
    """Running time, all attempts added up; waiting does not count. Then the job is stopped, saved and Failed."""
    max_steps: int | None = Field(default=None, ge=1)
    target: Target | None = None


class CheckpointPolicy(SpecModel):
    every: Duration = "60s"
    keep: int = Field(default=2, ge=1, le=100)
    grace: Duration = "30s"
    """Time a worker has from the request to stop until it is killed."""
    claim: ObjectName | None = None
    """The PersistentVolumeClaim that keeps checkpoints and output; on a cluster only. Absent: the runtime's way."""


class DataVolume(SpecModel):
    """A PersistentVolumeClaim of the job's project that every worker sees; on a cluster only."""

    name: DnsLabel
    claim: ObjectName
    sub_path: str = Field(default="", max_length=1024)
    mount_path: str | None = Field(default=None, max_length=1024)
    """Absent: /data/<name>."""
    read_only: bool = True

    @field_validator("mount_path")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("/") or ".." in value.split("/") or ":" in value):
            raise ValueError("must be an absolute path without '..' or ':'")
        return value

    @field_validator("sub_path")
    @classmethod
    def _relative(cls, value: str) -> str:
        if value.startswith("/") or ".." in value.split("/"):
            raise ValueError("must be a path within the volume, without '..'")
        return value


class RetryRule(SpecModel):
    """At most `limit` retries for ends of these categories, the first after `backoff`.

    The back-off doubles up to 10 minutes while attempts come to nothing: under a minute, and no further checkpoint.
    """

    on: tuple[Category, ...] = Field(min_length=1, max_length=len(Category))
    limit: int = Field(ge=0, le=100)
    backoff: Duration | None = None

    @field_validator("on")
    @classmethod
    def _raisable(cls, value: tuple[Category, ...]) -> tuple[Category, ...]:
        for category in value:
            if not POLICIES[category].raisable:
                raise ValueError(f"{category} can't be given retries: {POLICIES[category].says}")
        return value


class Retry(SpecModel):
    rules: tuple[RetryRule, ...] = Field(default=(), max_length=16)
    """The first rule that names a category holds; categories no rule names keep their defaults."""


class TrainingJobSpec(SpecModel):
    queue: DnsLabel = DEFAULT_QUEUE
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    workers: int = Field(default=1, ge=1, le=MAX_WORKERS)
    """A gang: all of them run, or none."""
    gpus_per_worker: int = Field(default=0, ge=0, le=MAX_GPUS_PER_WORKER)
    gpu: GpuRequest = GpuRequest()
    cpu: Quantity = "1"
    """Cores per worker."""
    memory: Quantity = "1Gi"
    """Memory per worker."""
    trainer: Trainer
    env: dict[EnvName, Annotated[str, Field(max_length=32_768)]] = Field(default={}, max_length=256)
    runtime: DnsLabel | None = None
    """The TrainingRuntime to run in; on a cluster only. Absent: `default` if there is one."""
    data: tuple[DataVolume, ...] = Field(default=(), max_length=32)
    precision: Precision = Precision.AUTO
    stop: Stop = Stop()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    retry: Retry = Retry()
    ttl_after_finished: Duration | None = None
    """The job is deleted, with its logs, this long after it has ended. Absent: it is kept."""
    suspend: bool = False
    cancel: bool = False
    retry_generation: int = Field(default=0, ge=0)
    """Raised by one to run a Failed or Cancelled job again."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gpus_per_worker == 0 and self.gpu != GpuRequest():
            raise ValueError("gpu says which GPUs, but gpusPerWorker is 0; ask for at least one or leave gpu out")
        names = [volume.name for volume in self.data]
        if len(set(names)) < len(names):
            raise ValueError("two entries of data have the same name")
        if self.trainer.command is not None:
            for name, given in (
                ("precision", self.precision is not Precision.AUTO),
                ("stop.maxSteps", self.stop.max_steps is not None),
                ("stop.target", self.stop.target is not None),
            ):
                if given:
                    raise ValueError(f"{name} works with a recipe; with a command only the program itself can do it")
        return self

    @property
    def total_gpus(self) -> int:
        return self.workers * self.gpus_per_worker

    @property
    def cpu_milli(self) -> int:
        """Per worker."""
        return cpu_milli(self.cpu)

    @property
    def memory_bytes(self) -> int:
        """Per worker."""
        return memory_bytes(self.memory)


class Phase(StrEnum):
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})
PLACED = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


class Placed(StatusModel):
    """Where one worker goes."""

    worker: int
    node: str


class Blame(StatusModel):
    """A node this job avoids for a while."""

    node: str
    until: datetime


class WorkerEnd(StatusModel):
    worker: int
    node: str
    pod_uid: str = ""
    exit_code: int | None = None
    category: Category | None = None


class AttemptEnd(StatusModel):
    """One ended attempt, in the capped history."""

    number: int
    started_at: datetime | None = None
    ended_at: datetime
    intent: Intent = Intent.NONE
    category: Category | None = None
    """None: every worker was done."""
    message: str = ""
    workers: tuple[WorkerEnd, ...] = ()
    progress: Progress | None = None
    """The last that worker 0's exit record held."""


class TrainingJobStatus(StatusModel):
    """All of it the operator's, but `progress`: the api's."""

    phase: Phase = Phase.QUEUED
    reason: Code = Code.SUBMITTED
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    attempt: int = 0
    """The current or newest attempt; 0: none yet."""
    intent: Intent = Intent.NONE
    """What was asked of the current attempt; recorded before its pods are stopped."""
    placement: tuple[Placed, ...] = ()
    """One entry per worker while an attempt is under way, else empty."""
    queued_at: datetime | None = None
    """Position in the queue among equal priorities; kept when an attempt is withdrawn, preempted or retried."""
    not_before: datetime | None = None
    """Backing off until then."""
    blamed: tuple[Blame, ...] = ()
    placed_at: datetime | None = None
    started_at: datetime | None = None
    """When all workers of the current attempt ran."""
    finished_at: datetime | None = None
    ran_s: float = 0.0
    """Seconds run in ended attempts."""
    retries: Mapping[Category, int] = {}
    """Ends so far per category since submission or the last retryGeneration."""
    attempts: tuple[AttemptEnd, ...] = ()
    """The newest MAX_ATTEMPTS."""
    observed_generation: int = 0
    observed_retry_generation: int = 0
    progress: Progress | None = None


MAX_ATTEMPTS = 10


class TrainingJob(Resource):
    api_version: str = API_VERSION
    kind: str = "TrainingJob"
    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()


MUTABLE = frozenset({"suspend", "cancel", "retry_generation", "priority"})


def _update_errors(old: TrainingJob, new: TrainingJob) -> list[str]:
    """What an update of the spec breaks."""
    errors = [
        f"spec.{info.alias or name} can't be changed once the job exists; submit a new job"
        for name, info in TrainingJobSpec.model_fields.items()
        if name not in MUTABLE and getattr(old.spec, name) != getattr(new.spec, name)
    ]
    if old.spec.cancel and not new.spec.cancel and old.spec.retry_generation == new.spec.retry_generation:
        errors.append("spec.cancel can't be taken back; raise retryGeneration to run the job again")
    if new.spec.retry_generation < old.spec.retry_generation:
        errors.append("spec.retryGeneration can only be raised")
    return errors


JOBS = Kind(TrainingJob, API_VERSION, "TrainingJob", "trainingjobs", namespaced=True, update_errors=_update_errors)


def _check_config(recipe: str, config: dict[str, JsonValue]) -> None:
    """Raise `config`'s faults with their own pointers (trainer.config.…), not as one opaque sentence."""
    try:
        resolve(recipe, config)
    except ValidationError as error:
        raise ValidationError.from_exception_data(
            "Trainer",
            [
                InitErrorDetails(
                    type=PydanticCustomError("config", "{reason}", {"reason": fault["msg"]}),
                    loc=("config", *fault["loc"]),
                    input=fault["input"],
                )
                for fault in error.errors()
            ],
        ) from None
