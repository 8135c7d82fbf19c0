"""TrainingJob: what a user asks for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .code import CodeDigest
from .form import Keyed, repeated
from .meta import Conditions, Kind, Resource, SpecModel, StatusModel
from .names import API_VERSION, DEFAULT_QUEUE, DnsLabel, EnvName, ImageName, ObjectName
from .outcome import POLICIES, Category, Intent
from .quantity import Duration, Quantity, cpu_milli, memory_bytes
from .reasons import Code
from .recipes import RECIPES, resolve
from .worker import Held, Progress

MAX_WORKERS = 4096
MAX_GPUS_PER_WORKER = 64
MAX_PRIORITY = 1_000_000
MAX_STEPS = 1_000_000_000_000
MAX_RETRY_GENERATION = 1_000_000_000

# Where a worker's container has something of its own: nothing of the user's may be mounted in it or over it.
OWN_PATHS = ("/stoker", "/checkpoints", "/tmp", "/dev", "/proc", "/sys", "/var/run", "/run")


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


WITHIN_CODE_SAYS = "with code, workingDir must be a path within it, without '..'"


def _within(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


class Trainer(SpecModel):
    """What runs: a recipe of ours with its config, or a command of the user's."""

    recipe: str | None = Field(default=None, max_length=63)
    """The name of a recipe of ours: image-classification."""
    config: dict[str, JsonValue] = {}
    """The recipe's settings; docs/trainer.md has them. What is left out takes the recipe's default."""
    image: ImageName | None = None
    """The container image to run the command in; on a cluster only. Absent: the runtime's."""
    command: tuple[Annotated[str, Field(max_length=131_072)], ...] | None = Field(default=None, max_length=1024)
    """A program and its arguments, run once per worker with torchrun's environment; no shell in between."""
    code: CodeDigest | None = None
    """The folder of code that `stoker run` sent: each worker has a copy of its own, and the command starts there."""
    working_dir: str | None = Field(default=None, max_length=4096)
    """Where the command starts; with code, a folder within it. Absent: the code's folder, else the image's own (on one
    machine a folder of the worker's)."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.recipe is None) == (self.command is None):
            raise ValueError("give either recipe (with config) or command (with workingDir)")
        if self.recipe is not None:
            if self.working_dir is not None or self.image is not None or self.code is not None:
                raise ValueError("workingDir, image and code belong to command; a recipe has its own")
            if self.recipe not in RECIPES:
                raise ValueError(f"there is no recipe {self.recipe!r}; there is: {', '.join(sorted(RECIPES))}")
            _check_config(self.recipe, self.config)
        elif self.config:
            raise ValueError("config belongs to recipe; give a command its settings as arguments or env")
        elif not self.command or not self.command[0]:
            raise ValueError("command must name a program")
        elif self.code is not None and self.working_dir is not None and not _within(self.working_dir):
            raise ValueError(WITHIN_CODE_SAYS)
        return self


class Target(SpecModel):
    """Stop as soon as an evaluation reaches this."""

    metric: Literal["accuracy"] = "accuracy"
    """What the evaluation measures."""
    value: float = Field(gt=0, le=1)
    """Reached when the metric is at least this."""


class Stop(SpecModel):
    """When the job is over; whatever comes first. Empty: when the program ends."""

    max_duration: Duration | None = None
    """Running time, all attempts added up; waiting does not count. Then the job is stopped, saved and Failed."""
    max_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Optimizer steps; with a recipe only."""
    target: Target | None = None
    """Good enough: stop as soon as an evaluation says so; with a recipe only."""


class CheckpointPolicy(SpecModel):
    """How often the job saves, what is kept, and how long it may take to save when it is stopped."""

    every: Duration = "60s"
    """Time between checkpoints: the most work that a lost node can cost."""
    keep: int = Field(default=2, ge=1, le=100)
    """How many of the newest checkpoints stay."""
    grace: Duration = "30s"
    """Time a worker has from the request to stop until it is killed."""
    claim: ObjectName | None = None
    """The PersistentVolumeClaim that keeps checkpoints and output; on a cluster only. Absent: the runtime's way."""


MOUNT_PATH_SAYS = "must be an absolute path without '.', '..', ':' or a '/' too many"
OWN_PATHS_SAYS = f"is a worker's own place ({', '.join(OWN_PATHS)}); mount it elsewhere, for example under /data"
SUB_PATH_SAYS = "must be a path within the volume, without '..'"


class DataVolume(SpecModel):
    """A PersistentVolumeClaim of the job's project that every worker sees; on a cluster only."""

    name: DnsLabel
    """Its name within the job."""
    claim: ObjectName
    """The PersistentVolumeClaim's name, in the job's project."""
    sub_path: str = Field(default="", max_length=1024)
    """The folder within the volume that is shown. Empty: all of it."""
    mount_path: str | None = Field(default=None, max_length=1024)
    """Where workers find it. Absent: /data/<name>."""
    read_only: bool = True
    """Workers can't write there."""

    @property
    def path(self) -> str:
        """Where workers find it."""
        return self.mount_path or f"/data/{self.name}"

    @field_validator("mount_path")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = value.split("/")
        if parts[0] != "" or {"", ".", ".."} & set(parts[1:]) or ":" in value:
            raise ValueError(MOUNT_PATH_SAYS)
        if any(f"{value}/".startswith(f"{own}/") or own.startswith(f"{value}/") for own in OWN_PATHS):
            raise ValueError(OWN_PATHS_SAYS)
        return value

    @field_validator("sub_path")
    @classmethod
    def _relative(cls, value: str) -> str:
        if not _within(value):
            raise ValueError(SUB_PATH_SAYS)
        return value


class RetryRule(SpecModel):
    """At most `limit` retries for ends of these categories, the first after `backoff`.

    The back-off doubles up to 10 minutes while attempts come to nothing: under a minute, and no further checkpoint.
    """

    categories: tuple[Category, ...] = Field(min_length=1, max_length=len(Category))
    """The categories of failure the rule is for."""
    limit: int = Field(ge=0, le=100)
    """The most retries for each of them."""
    backoff: Duration | None = None
    """The wait before the first retry. Absent: 1 to 30 seconds, by category."""

    @field_validator("categories")
    @classmethod
    def _raisable(cls, value: tuple[Category, ...]) -> tuple[Category, ...]:
        for category in value:
            if not POLICIES[category].raisable:
                raise ValueError(f"{category} can't be given retries: {POLICIES[category].says}")
        return value


class Retry(SpecModel):
    """How often a failed job is tried again, by category of failure."""

    rules: tuple[RetryRule, ...] = Field(default=(), max_length=16)
    """The first rule that names a category holds; categories no rule names keep their defaults."""


class OnFailure(SpecModel):
    """What happens to a worker whose command failed."""

    hold: Duration | None = None
    """Its container and GPUs are kept this long before the failure counts, for a look inside (`stoker exec`). A retry
    waits until then; cancelling, suspending or deleting the job ends it at once."""


class TrainingJobSpec(SpecModel):
    """What is asked for. Only suspend, cancel, retryGeneration and priority can be changed later."""

    queue: DnsLabel = DEFAULT_QUEUE
    """The Queue whose share the job uses."""
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Higher goes first within the queue."""
    workers: int = Field(default=1, ge=1, le=MAX_WORKERS)
    """A gang: all of them run, or none."""
    gpus_per_worker: int = Field(default=0, ge=0, le=MAX_GPUS_PER_WORKER)
    """Whole GPUs of each worker; one rank runs on each. 0: the job trains on CPU."""
    gpu: GpuRequest = GpuRequest()
    cpu: Quantity = "1"
    """Cores per worker."""
    memory: Quantity = "1Gi"
    """Memory per worker."""
    trainer: Trainer
    env: dict[EnvName, Annotated[str, Field(max_length=32_768)]] = Field(default={}, max_length=256)
    """Environment variables of every worker."""
    runtime: DnsLabel | None = None
    """The TrainingRuntime to run in; on a cluster only. Absent: `default` if there is one."""
    data: Annotated[tuple[DataVolume, ...], Keyed("name")] = Field(default=(), max_length=32)
    """Volumes with data; on a cluster only."""
    precision: Precision = Precision.AUTO
    """Arithmetic of the recipe; auto: the best the GPUs can do."""
    stop: Stop = Stop()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    retry: Retry = Retry()
    on_failure: OnFailure = OnFailure()
    ttl_after_finished: Duration | None = None
    """The job is deleted, with its logs, this long after it has ended. Absent: it is kept."""
    suspend: bool = False
    """Stop after saving and wait; set back to go on from the checkpoint."""
    cancel: bool = False
    """End for good."""
    retry_generation: int = Field(default=0, ge=0, le=MAX_RETRY_GENERATION)
    """Raised by one to run a Failed or Cancelled job again."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gpus_per_worker == 0 and self.gpu != GpuRequest():
            raise ValueError("gpu says which GPUs, but gpusPerWorker is 0; ask for at least one or leave gpu out")
        if repeated(volume.name for volume in self.data) is not None:
            raise ValueError("two entries of data have the same name")
        if repeated(volume.path for volume in self.data) is not None:
            raise ValueError("two entries of data have the same mountPath")
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
    """The worker's number, from 0."""
    node: str
    """The node's name."""


class Blame(StatusModel):
    """A node this job avoids for a while."""

    node: str
    """The node's name."""
    until: datetime
    """When the blame expires."""


class WorkerEnd(StatusModel):
    """How one worker of an attempt ended."""

    worker: int
    """The worker's number, from 0."""
    node: str
    """Where it ran."""
    pod_uid: str = ""
    """Of its pod."""
    exit_code: int | None = None
    """Of the worker. Absent: it left no exit record."""
    category: Category | None = None
    """Why it ended. Absent: it was done."""


class AttemptEnd(StatusModel):
    """One ended attempt, in the capped history."""

    number: int
    """From 1."""
    started_at: datetime | None = None
    """When all workers ran. Absent: they never did."""
    ended_at: datetime
    """When the last worker had ended."""
    intent: Intent = Intent.NONE
    """What Stoker itself had asked of it."""
    category: Category | None = None
    """Why the attempt ended. Absent: every worker was done."""
    held_s: float = 0.0
    """Seconds its GPUs were held after the failure (onFailure.hold)."""
    message: str = ""
    """What happened, for people."""
    workers: tuple[WorkerEnd, ...] = ()
    """One entry per worker that was started."""
    progress: Progress | None = None
    """The last that worker 0's exit record held."""


class TrainingJobStatus(StatusModel):
    """What became of the job. All of it the operator's, but `progress`: the api's."""

    phase: Phase = Phase.QUEUED
    """Where the job is in its life."""
    reason: Code = Code.SUBMITTED
    """Why it is there, as a stable code; `stoker why` tells all of it."""
    message: str = ""
    """The same, for people."""
    conditions: Conditions = ()
    """For `kubectl wait --for=condition=…`: Succeeded, Failed, Cancelled, Suspended and others."""
    attempt: int = 0
    """The current or newest attempt; 0: none yet."""
    intent: Intent = Intent.NONE
    """What was asked of the current attempt; recorded before its pods are stopped."""
    placement: tuple[Placed, ...] = ()
    """One entry per worker while an attempt is under way, else empty."""
    queued_at: datetime | None = None
    """Position in the queue among equal priorities; kept when an attempt is withdrawn, preempted or retried."""
    not_before: datetime | None = None
    """No new attempt before this, after a failure."""
    blamed: tuple[Blame, ...] = ()
    """Nodes the job avoids for a while."""
    placed_at: datetime | None = None
    """When the current attempt was given its nodes."""
    started_at: datetime | None = None
    """When all workers of the current attempt ran."""
    finished_at: datetime | None = None
    """When the job ended for good."""
    ran_s: float = 0.0
    """Seconds run in ended attempts, without what they were held after a failure."""
    held_s: float = 0.0
    """Seconds held after failures (onFailure.hold), in ended attempts."""
    retries: Mapping[Category, int] = {}
    """Ends so far per category since submission or the last retryGeneration."""
    attempts: tuple[AttemptEnd, ...] = ()
    """The ended attempts, the newest ten."""
    observed_generation: int = 0
    """The metadata.generation that this status answers to."""
    observed_retry_generation: int = 0
    """The spec.retryGeneration that this status answers to."""
    progress: Progress | None = None

    @property
    def held(self) -> Held | None:
        """The hold that lasts: the attempt under way has failed, but its workers are kept."""
        return self.progress.held if self.progress is not None and self.phase in PLACED else None


MAX_ATTEMPTS = 10


class TrainingJob(Resource):
    """A training job: a gang of workers that runs a recipe of Stoker's or a command of your own until it is done."""

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
