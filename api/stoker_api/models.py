"""The shapes of answers that are no stored objects, for the OpenAPI document and for reading reports.

Routes write bytes; tests hold these models against what they write.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from stoker.spec.event import Event
from stoker.spec.job import TrainingJob
from stoker.spec.meta import SpecModel, StatusModel
from stoker.spec.node import GPUNode
from stoker.spec.queue import Queue, QueueSpec
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec
from stoker.spec.usage import MAX_RECEIPTS, JobUsage
from stoker.spec.worker import MAX_UNIX_S, Progress

_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class JobList(StatusModel):
    items: tuple[TrainingJob, ...]
    next_cursor: str | None
    """Where the next page begins; null: that was all."""


class EventList(StatusModel):
    items: tuple[Event, ...]


class NodeUse(StatusModel):
    """What running jobs hold of a node. Units: GPUs, thousandths of a core, bytes."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0


class QueueUse(NodeUse):
    """What a queue's jobs hold, and how many there are."""

    running: int = 0
    pending: int = 0
    held_gpus: int = 0
    """Of `gpus`: those of jobs that have failed and are kept for a look inside (onFailure.hold)."""


class QueueWithUsage(Queue):
    usage: QueueUse = QueueUse()


class QueueList(StatusModel):
    items: tuple[QueueWithUsage, ...]


class BeingDeleted(StatusModel):
    """What keeps a deleted object for the moment."""

    message: str


class NodeWithUsage(GPUNode):
    usage: NodeUse = NodeUse()


class NodeList(StatusModel):
    items: tuple[NodeWithUsage, ...]


class QueuePut(SpecModel):
    """The body of `PUT /v1/queues/{name}`."""

    spec: QueueSpec


class RuntimeList(StatusModel):
    items: tuple[TrainingRuntime, ...]


class RuntimePut(SpecModel):
    """The body of `PUT /v1/runtimes/{name}`."""

    spec: TrainingRuntimeSpec


class CodeStored(StatusModel):
    """A bundle of code that is here, with all its files."""

    digest: str
    files: int
    """Links among them."""
    size: int
    """Bytes of all files."""


class CodeTaken(StatusModel):
    """What became of a pack's files. Units: files, bytes."""

    stored: int
    known: int
    """They were here already."""
    bytes_stored: int


class WorkerReport(StatusModel):
    """Which worker speaks: the body of `POST /v1/report/alive`.

    Unknown fields (a newer supervisor's) are left aside.
    """

    pod_uid: Annotated[str, Field(max_length=128)]
    job_uid: Annotated[str, Field(max_length=128)]
    project: Annotated[str, Field(max_length=63, pattern=_NAME)]
    job_name: Annotated[str, Field(max_length=63, pattern=_NAME)]
    attempt: Annotated[int, Field(ge=0)]
    worker: Annotated[int, Field(ge=0)]


class ProgressReport(WorkerReport):
    """The body of `POST /v1/report/progress`."""

    progress: Progress


class StopWord(StatusModel):
    """Whether the worker is to go on: in answers to its reports."""

    stop: bool = False
    """Nobody waits for this worker any more: it is to save and to end, as if its node had told it."""
    why: str = ""
    """For the worker's log."""


class StallWord(StatusModel):
    """The worker's gang makes no progress: it is to save its stacks now, and to end its ranks then."""

    in_s: float
    """Seconds from now until the whole gang's ranks are ended."""
    why: str
    """For the worker's log and exit record."""


class AliveWord(StopWord):
    """The answer to `POST /v1/report/alive`."""

    stalled: StallWord | None = None
    """Absent: it is not."""

    sessions: tuple[str, ...] = ()
    """Somebody waits for this worker in these sessions (`/v1/report/sessions/{id}`); absent: nobody."""


class LogHeld(AliveWord):
    """The answer to `POST /v1/report/log`: a worker that ships its log asks nothing else."""

    offset: int
    """How much of the worker's log is held without a gap: where the next piece is to begin."""


class ReceiptsReport(StatusModel):
    """The body of `POST /v1/report/usage`: what the node's exporter counted."""

    node: Annotated[str, Field(max_length=253)]
    receipts: Annotated[tuple[dict[str, Any], ...], Field(max_length=MAX_RECEIPTS)]
    """As `GpuReceipt`; each is read by itself, so that a wrong one costs no other."""


class ReceiptRefused(StatusModel):
    index: int
    """Into the report's receipts."""
    why: str
    """For the exporter's log; the same receipt will be refused again."""


class ReceiptsTaken(StatusModel):
    """The answer to `POST /v1/report/usage`."""

    taken: int
    """On the disk now, those that were there already among them."""
    refused: tuple[ReceiptRefused, ...]


class PodName(StatusModel):
    namespace: Annotated[str, Field(max_length=63)]
    name: Annotated[str, Field(max_length=253)]


class OwnersAsked(StatusModel):
    """The body of `POST /v1/report/owners`: pods that hold GPUs of the exporter's node."""

    pods: Annotated[tuple[PodName, ...], Field(max_length=1024)]


class PodOwner(StatusModel):
    """A pod, and the worker it is; jobUid is empty where it is none of Stoker's."""

    namespace: str
    name: str
    pod_uid: str
    job_uid: str = ""
    project: str = ""
    job_name: str = ""
    attempt: int = 0
    worker: int = 0
    ended: bool = False
    """It holds nothing any more; kubelets before 1.34 list its devices nevertheless."""


class OwnersFound(StatusModel):
    """The answer to `POST /v1/report/owners`; pods that are not known (yet) are left out."""

    owners: tuple[PodOwner, ...]


class JobHolder(StatusModel):
    """A job that held the GPU."""

    job_uid: Annotated[str, Field(max_length=64)]
    project: Annotated[str, Field(max_length=63)]
    job_name: Annotated[str, Field(max_length=63)]


class GpuEventTold(StatusModel):
    """Something that befell a GPU."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    """The exporter's; of one id one event is written."""
    at: Annotated[float, Field(ge=0, le=MAX_UNIX_S)]
    """Unix time in seconds."""
    uuid: Annotated[str, Field(max_length=128)]
    index: int
    kind: Literal["xid", "lost", "recovered", "recovery_action", "mig_changed"]
    code: int = 0
    """The XID, or the recovery action."""
    text: Annotated[str, Field(max_length=1024)] = ""
    owners: Annotated[tuple[JobHolder, ...], Field(max_length=64)] = ()


class GpuEventsReport(StatusModel):
    """The body of `POST /v1/report/gpu-events`."""

    node: Annotated[str, Field(max_length=253)]
    events: Annotated[tuple[GpuEventTold, ...], Field(max_length=256)]


class GpuEventsTaken(StatusModel):
    """The answer to `POST /v1/report/gpu-events`."""

    taken: int


class HintShown(StatusModel):
    """What to ask for instead."""

    code: str
    """UnusedGpus, Idle, Compute, Memory."""
    text: str
    """For people."""


class UsageRow(StatusModel):
    """GPU time summed. What it is the sum of stands in the fields that `by` named. Absent: not known, never 0."""

    user: str | None = None
    queue: str | None = None
    project: str | None = None
    job: str | None = None
    job_uid: str | None = None
    model: str | None = None
    day: str | None = None
    hour: str | None = None
    """Its begin, UTC."""
    simulated: bool
    """Of slots of `--virtual-gpus`; never summed with devices."""
    jobs: int
    gpu_hours: float
    busy_hours: float | None = None
    """A kernel ran."""
    sm_active_hours: float | None = None
    tensor_active_hours: float | None = None
    idle_hours: dict[str, float]
    """By class."""
    unobserved_hours: float
    """About which nothing is known; never counted as idle."""
    energy_kwh: float | None = None
    """Of the GPUs alone."""
    cost: float | None = None
    """Absent: no price is set for these GPUs."""
    unpriced_hours: float
    """Of gpuHours: of devices without a price."""
    efficiency: float | None = None
    """SM activity per observed GPU-hour, of GPUs that tell it."""


class UsageAnswer(StatusModel):
    since: datetime
    until: datetime
    """Whole hours from `since` to before `until`."""
    by: tuple[str, ...]
    currency: str | None = None
    """Absent: no prices are set."""
    rows: tuple[UsageRow, ...]
    totals: tuple[UsageRow, ...]
    """Over all, those rows that were left out among them; devices and simulated GPUs apart."""
    truncated: bool
    """There are more rows than `limit`."""
    hints: tuple[HintShown, ...] = ()
    """Of the queue, if one was asked for."""


class AttemptUsage(StatusModel):
    attempt: int
    usage: JobUsage


class GpuUsage(StatusModel):
    """One GPU of one worker in one attempt."""

    attempt: int
    worker: int
    node: str
    uuid: str
    model: str
    method: str
    """How the worker's share came about: exclusive, even, mig_slices."""
    begin_at: datetime
    usage: JobUsage


class JobUsageShown(StatusModel):
    """What one job has had of GPUs."""

    project: str
    job: str
    job_uid: str
    queue: str
    user: str
    deleted: bool
    """The job itself is gone."""
    usage: JobUsage
    efficiency: float | None = None
    """SM activity per observed GPU-second. Absent: the GPUs don't tell."""
    cost: float | None = None
    """Absent: no price is set for these GPUs."""
    unpriced_hours: float = 0.0
    currency: str | None = None
    attempts: tuple[AttemptUsage, ...] = ()
    gpus: tuple[GpuUsage, ...] = ()
    truncated: bool = False
    """There are more GPUs; `?attempt=` shows those of one attempt."""
    hints: tuple[HintShown, ...] = ()
    note: str = ""
    """Why there is nothing, if there is nothing."""


class WhoAmI(StatusModel):
    name: str
    role: str
    projects: tuple[str, ...]


class ScrapeTargetGroup(StatusModel):
    """One target, as Prometheus' HTTP service discovery has it."""

    targets: tuple[str, ...]
    """host:port"""
    labels: dict[str, str]
    """Of workers: job (stoker-workers), project, job_name, job_uid, attempt, worker, queue."""


class Version(StatusModel):
    version: str
    api_version: str
    mode: Literal["OneMachine", "Cluster"]


class ProblemFault(StatusModel):
    pointer: str
    detail: str
    in_: Annotated[str, Field(alias="in")] = "body"


class ProblemDocument(StatusModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: tuple[ProblemFault, ...]
    retryable: bool
    trace_id: str
