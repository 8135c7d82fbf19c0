"""TrainingJob: what a user asks for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from .data import DataVolume
from .fields import DnsLabel, Duration, EnvName, Quantity
from .job_parts import (
    ELASTIC_SAYS,
    EVALUATED,
    EVALUATED_SAYS,
    EXIT_ZERO_SAYS,
    FROM_SAYS,
    MAX_SECRETS,
    MAX_WORKERS,
    ONE_WORKER_SAYS,
    PARTS_SAYS,
    SECRET_TWICE_SAYS,
    CheckpointPolicy,
    Elastic,
    GpuRequest,
    IdlePolicy,
    JobTopology,
    OnFailure,
    Precision,
    Retry,
    SecretRef,
    StallPolicy,
    Stop,
    Trainer,
)
from .markers import Keyed, repeated
from .meta import Conditions, Key, Kind, Resource, SpecModel, StatusModel
from .names import API_VERSION, DEFAULT_QUEUE, GPU_RESOURCE
from .outcome import Category, ExitZero, Intent
from .phase import ENDED as ENDED
from .phase import PLACED as PLACED
from .phase import Phase as Phase
from .quantity import cpu_milli, memory_bytes
from .reasons import Code
from .usage import JobUsage
from .worker import Held, Progress, Stalled
from .worker_size import LEAST_CPU, LEAST_MEMORY, WorkerResources

MAX_GPUS_PER_WORKER = 64
MAX_PRIORITY = 1_000_000
MAX_RETRY_GENERATION = 1_000_000_000


class TrainingJobSpec(SpecModel):
    """What is asked for. Only suspend, cancel, retryGeneration and priority can be changed later."""

    queue: DnsLabel = DEFAULT_QUEUE
    """The Queue whose share the job uses."""
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Higher goes first within the queue."""
    workers: int = Field(default=1, ge=1, le=MAX_WORKERS)
    """A gang: all of them run, or none. With `elastic` the number that is wished for."""
    elastic: Elastic | None = None
    gpus_per_worker: int = Field(default=0, ge=0, le=MAX_GPUS_PER_WORKER)
    """Whole GPUs of each worker; one rank runs on each. 0: the job trains on CPU."""
    gpu: GpuRequest = GpuRequest()
    topology: JobTopology = JobTopology()
    cpu: Quantity | None = None
    """Cores per worker. Absent: what its queue or runtime says, else the share of its GPUs, as status.resources has it.
    Without GPUs 1."""
    memory: Quantity | None = None
    """Memory per worker. Absent: as with cpu; without GPUs 1Gi."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, counted as the worker's memory; on one machine it is the machine's own. Absent: what the
    runtime says, else half of memory."""
    trainer: Trainer
    env: dict[EnvName, Annotated[str, Field(max_length=32_768)]] = Field(default={}, max_length=256)
    """Environment variables of every worker."""
    secret_env: dict[EnvName, SecretRef] = Field(default={}, max_length=MAX_SECRETS)
    """The same with values from secrets of the project, which no one can read here."""
    runtime: DnsLabel | None = None
    """The TrainingRuntime to run in; on a cluster only. Absent: `default` if there is one."""
    data: Annotated[tuple[DataVolume, ...], Keyed("name")] = Field(default=(), max_length=32)
    """Data that every worker sees."""
    precision: Precision = Precision.AUTO
    """Arithmetic of the recipe; auto: the best of fp32, bf16 and fp16 that the GPUs can do."""
    stop: Stop = Stop()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    retry: Retry = Retry()
    on_failure: OnFailure = OnFailure()
    stall: StallPolicy = StallPolicy()
    idle: IdlePolicy = IdlePolicy()
    preemptible: bool = True
    """It may be stopped, after saving, for a job that goes before it (the queue's `preemption`), and goes on later."""
    ttl_after_finished: Duration | None = None
    """The job is deleted, with its logs, this long after it has ended. Absent: as its queue says, else the operator."""
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
        if self.gpu.resource != GPU_RESOURCE and self.gpus_per_worker * self.most_workers > 1:
            raise ValueError(PARTS_SAYS)
        if self.elastic is not None and not self.elastic.min <= self.workers <= self.elastic.max:
            raise ValueError(ELASTIC_SAYS)
        if self.checkpoint.source is not None and self.trainer.init_from is not None:
            raise ValueError(FROM_SAYS)
        if self.env.keys() & self.secret_env.keys():
            raise ValueError(SECRET_TWICE_SAYS)
        if repeated(volume.name for volume in self.data) is not None:
            raise ValueError("two entries of data have the same name")
        if repeated(volume.place for volume in self.data) is not None:
            raise ValueError("two entries of data have the same mountPath")
        if self.trainer.command is not None:
            for name, given in (
                ("precision", self.precision is not Precision.AUTO),
                ("stop.maxSteps", self.stop.max_steps is not None),
                ("stop.patience", self.stop.patience is not None),
            ):
                if given:
                    raise ValueError(f"{name} works with a recipe; with a command only the program itself can do it")
            if self.stop.target is not None and self.most_workers > 1:
                raise ValueError(ONE_WORKER_SAYS)
        elif self.stop.target is not None and self.stop.target.metric not in EVALUATED:
            raise ValueError(EVALUATED_SAYS)
        elif self.stop.exit_zero_after_signal is ExitZero.STOPPED:
            raise ValueError(EXIT_ZERO_SAYS)
        return self

    @property
    def source_job(self) -> str | None:
        """The job whose weights or checkpoint this one begins with."""
        if self.checkpoint.source is not None:
            return self.checkpoint.source.job
        return self.trainer.init_from.job if self.trainer.init_from is not None else None

    @property
    def total_gpus(self) -> int:
        """Of as many workers as are wished for."""
        return self.workers * self.gpus_per_worker

    @property
    def least_workers(self) -> int:
        return self.workers if self.elastic is None else self.elastic.min

    @property
    def most_workers(self) -> int:
        return self.workers if self.elastic is None else self.elastic.max


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


class ReservationCost(StatusModel):
    """What keeping nodes for the job while it waits has cost; now and then written anew."""

    at: datetime
    """As of when."""
    nodes: tuple[str, ...] = ()
    """The nodes that are kept."""
    idle_gpu_s: float = 0.0
    """GPU-seconds that stood idle for its sake."""
    given_back: bool = False
    """The queue's reservationBudget is spent: nothing is kept until it has grown to twice the cost."""


class Victim(StatusModel):
    """An attempt that is stopped so that another job can start."""

    namespace: str
    """The job's project."""
    name: str
    """The job's name."""
    uid: str
    """The job's."""
    attempt: int
    """The attempt that is stopped; a later one is not."""
    keeps: tuple[Placed, ...] = ()
    """Of an elastic job: where it goes on with fewer workers. Empty: all of it makes room."""

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


class Claim(StatusModel):
    """The room that is kept for a job until the attempts that are stopped for it have ended; of an elastic job that is
    resized, the room in which it goes on once its own attempt has ended."""

    placement: tuple[Placed, ...]
    """Where it will start."""
    gpu_type: str = ""
    """Of the GPUs there. Empty: none, or of several types."""
    victims: tuple[Victim, ...]
    """The attempts that are stopped for it."""
    since: datetime
    """When it was decided."""
    replans: int = 0
    """How often it was decided anew because something outside Stoker took the room."""


class GpuTest(StatusModel):
    """What makes a job a burn-in."""

    gpu: str
    """The GPU's uuid."""
    at: datetime
    """When the job was given its place: what was wrong until then is what it tests."""


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
    """One entry per worker that was started; of the newest attempts, 4,096 entries together at most."""
    progress: Progress | None = None
    """The last that worker 0's exit record held."""


class TrainingJobStatus(StatusModel):
    """What became of the job. All of it the operator's, but `progress`, `usage` and `output`: the api's."""

    phase: Phase = Phase.QUEUED
    """Where the job is in its life."""
    reason: Code = Code.SUBMITTED
    """Why it is there, as a stable code; `stoker why` has the details."""
    message: str = ""
    """The same, for people."""
    conditions: Conditions = ()
    """For `kubectl wait --for=condition=…`: Scheduled (it has its nodes), Succeeded, Failed, Cancelled, Suspended and
    others."""
    attempt: int = 0
    """The current or newest attempt; 0: none yet."""
    intent: Intent = Intent.NONE
    """What was asked of the current attempt; recorded before its pods are stopped."""
    resources: WorkerResources | None = None
    """What each worker gets where the job does not say all of it. Absent: as its spec says; of a queued job that says
    neither: not known yet, and until then it does not start."""
    placement: tuple[Placed, ...] = ()
    """One entry per worker while an attempt is under way, else empty."""
    burn_in: GpuTest | None = None
    """The sick GPU that this job, which the operator itself has made, tests. Absent: it is a user's."""
    gpu_type: str = ""
    """Of the GPUs that it has or last had, for example h100: it counts as such in queues' limits and guarantees. Empty:
    none, or of several types."""
    queued_at: datetime | None = None
    """Position in the queue among equal priorities; kept when an attempt is withdrawn, preempted or retried."""
    not_before: datetime | None = None
    """No new attempt before this, after a failure."""
    blamed: tuple[Blame, ...] = ()
    """Nodes the job avoids for a while."""
    reservation: ReservationCost | None = None
    """Absent: no GPU was kept idle for this wait."""
    claim: Claim | None = None
    """Absent: no job is stopped so that this one can start, and it is not being resized."""
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
    attained_gpu_seconds: float = 0.0
    """GPU-seconds had so far: how long each ended attempt lasted, a hold after a failure included, times its GPUs."""
    retries: Mapping[Category, int] = {}
    """Ends so far per category since submission or the last retryGeneration."""
    attempts: tuple[AttemptEnd, ...] = ()
    """The ended attempts, the newest ten."""
    observed_generation: int = 0
    """The metadata.generation that this status answers to."""
    observed_retry_generation: int = 0
    """The spec.retryGeneration that this status answers to."""
    progress: Progress | None = None
    usage: JobUsage | None = None
    output: str = ""
    """Where its results are: a folder on one machine, on a cluster the claim and the path there. Empty: nowhere yet.
    Filled in by the api as it answers, never stored."""

    @property
    def held(self) -> Held | None:
        """The hold that lasts: the attempt under way has failed, but its workers are kept."""
        return self.progress.held if self.progress is not None and self.phase in PLACED else None

    @property
    def stalled(self) -> Stalled | None:
        """The stall of the attempt under way: its stacks are being saved, its end is near."""
        stalled = None if self.progress is None else self.progress.stalled
        return stalled if stalled is not None and stalled.attempt == self.attempt and self.phase in PLACED else None


MAX_ATTEMPTS = 10
CHECKPOINTS_CONDITION = "CheckpointsPersistent"
"""False: the running attempt's checkpoints are deleted with its pods."""


class TrainingJob(Resource):
    """A training job: a gang of workers that runs a recipe of Stoker's or a command of your own until it is done."""

    api_version: str = API_VERSION
    kind: str = "TrainingJob"
    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()

    @property
    def workers(self) -> int:
        """Of the attempt under way; else as many as are wished for."""
        return len(self.status.placement) or self.spec.workers

    @property
    def gpus(self) -> int:
        """Of these workers."""
        return self.workers * self.spec.gpus_per_worker

    @property
    def is_sized(self) -> bool:
        """It is known what each worker gets."""
        return self.status.resources is not None or (self.spec.cpu is not None and self.spec.memory is not None)

    @property
    def cpu(self) -> str:
        """Cores per worker; the least as long as that is not known."""
        resources = self.status.resources
        return resources.cpu if resources is not None else self.spec.cpu or LEAST_CPU

    @property
    def memory(self) -> str:
        """Memory per worker; the least as long as that is not known."""
        resources = self.status.resources
        return resources.memory if resources is not None else self.spec.memory or LEAST_MEMORY

    @property
    def cpu_milli(self) -> int:
        """As cpu."""
        return cpu_milli(self.cpu)

    @property
    def memory_bytes(self) -> int:
        """As memory."""
        return memory_bytes(self.memory)


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
