"""The REST contract: bodies of requests and answers that are not stored objects.

Written once, for the api's OpenAPI document, the SDK and the CLI. Reports of workers and exporters are in `reports`.
The api writes most answers as bytes; tests hold these models against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, TypedDict

from pydantic import Field

from .event import Event
from .job import Phase, TrainingJob
from .meta import SpecModel, StatusModel
from .queue import Queue, QueueSpec
from .rest_nodes import NodeUsage
from .runtime import TrainingRuntime, TrainingRuntimeSpec
from .usage import JobUsage

MAX_SECRET = 32_768
"""Characters of a value, as of a variable in `env`."""


class JobList(StatusModel):
    items: tuple[TrainingJob, ...]
    next_cursor: str | None
    """Where the next page begins; null: that was all."""


class EventList(StatusModel):
    items: tuple[Event, ...]
    """Oldest first."""


class JobFile(StatusModel):
    """One file of a job's output folder, or a symbolic link there (which is never followed)."""

    path: str
    """Within the output folder. What was written beside the code is below `beside-code`."""
    kind: Literal["file", "link"]
    """A file, or a symbolic link."""
    size: int
    """Units: bytes."""
    modified_at: datetime
    """When it was last written."""


class FileList(StatusModel):
    items: tuple[JobFile, ...]
    """By path."""
    folder: str
    """What they are below, from the output folder; empty: all of it."""
    truncated: bool
    """There are more."""


class ProjectSecret(StatusModel):
    """A secret of a project: all that is ever shown of it."""

    name: str
    """By which jobs name it."""
    keys: tuple[str, ...]
    """Of its values."""
    created_at: datetime
    """When its first value was set."""
    changed_at: datetime
    """When a value was last set or deleted."""


class SecretList(StatusModel):
    items: tuple[ProjectSecret, ...]
    """By name."""


class SecretPut(SpecModel):
    """One value of a secret; it is never shown again."""

    value: str = Field(min_length=1, max_length=MAX_SECRET)
    """What workers get."""


class QueueUsage(NodeUsage):
    """What a queue's jobs hold, and how many there are."""

    running: int = 0
    """Jobs that have a place."""
    pending: int = 0
    """Jobs that wait."""
    held_gpus: int = 0
    """Of `gpus`: those of jobs that have failed and are kept for a look inside (onFailure.hold)."""


class QueueWithUsage(Queue):
    usage: QueueUsage = QueueUsage()


class QueueList(StatusModel):
    items: tuple[QueueWithUsage, ...]
    """By name."""


class BeingDeleted(StatusModel):
    """What keeps a deleted object for the moment."""

    message: str
    """Why it is still there."""


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
    """The bundle's."""
    files: int
    """Links among them."""
    size: int
    """Bytes of all files."""


class PackStored(StatusModel):
    """What became of a pack's files. Units: files, bytes."""

    stored: int
    """New here."""
    known: int
    """They were here already."""
    bytes_stored: int
    """Of the new ones."""


class Hint(StatusModel):
    """What to ask for instead."""

    code: str
    """UnusedGpus, Idle, Compute, Memory."""
    text: str
    """For people."""


class UsageRow(StatusModel):
    """GPU time summed. What it is the sum of stands in the fields that `by` named. Absent: not known, never 0."""

    user: str | None = None
    """The submitter."""
    queue: str | None = None
    """The jobs' queue."""
    project: str | None = None
    """The jobs' project."""
    job: str | None = None
    """The job's name."""
    job_uid: str | None = None
    """Of this very job."""
    model: str | None = None
    """Of the GPUs."""
    day: str | None = None
    """Its date, UTC."""
    hour: str | None = None
    """Its begin, UTC."""
    simulated: bool
    """Of slots of `--virtual-gpus`; never summed with devices."""
    jobs: int
    """That had these GPUs."""
    gpu_hours: float
    """Hours that GPUs were the jobs'."""
    busy_hours: float | None = None
    """A kernel ran."""
    sm_active_hours: float | None = None
    """SM activity, summed."""
    tensor_active_hours: float | None = None
    """Tensor cores' activity, summed."""
    idle_hours: Mapping[str, float]
    """By class."""
    unobserved_hours: float
    """About which nothing is known; never counted as idle."""
    energy_kwh: float | None = None
    """Of the GPUs alone."""
    unobserved_energy_kwh: float | None = None
    """Of energyKwh: used while nothing else was known of GPUs that one job alone held. Absent: none."""
    cost: float | None = None
    """Absent: no price is set for these GPUs."""
    unpriced_hours: float
    """Of gpuHours: of devices without a price."""
    efficiency: float | None = None
    """SM activity per observed GPU-hour, of GPUs that report it."""


class UsageReport(StatusModel):
    since: datetime
    """The first hour."""
    until: datetime
    """Whole hours from `since` to before `until`."""
    by: tuple[str, ...]
    """What each row is the sum of."""
    currency: str | None = None
    """Absent: no prices are set."""
    rows: tuple[UsageRow, ...]
    totals: tuple[UsageRow, ...]
    """Over all, those rows that were left out among them; devices and simulated GPUs apart."""
    truncated: bool
    """There are more rows than `limit`."""
    hints: tuple[Hint, ...] = ()
    """Of the queue, if one was asked for."""


class AttemptUsage(StatusModel):
    attempt: int
    """Its number, from 1."""
    usage: JobUsage
    """What it has had."""


class GpuUsage(StatusModel):
    """One GPU of one worker in one attempt."""

    attempt: int
    """Its number, from 1."""
    worker: int
    """Its number, from 0."""
    node: str
    """Where the GPU is."""
    uuid: str
    """The GPU's."""
    model: str
    """The GPU's."""
    method: str
    """How the worker's share came about: exclusive, even, sm_share (energy by what each pod did), mig_slices."""
    begin_at: datetime
    """Since when the worker had it."""
    usage: JobUsage
    """What the worker has had of it."""


class JobUsageReport(StatusModel):
    """What one job has had of GPUs."""

    project: str
    """The job's."""
    job: str
    """Its name."""
    job_uid: str
    """Of this very job."""
    queue: str
    """The job's."""
    user: str
    """Its submitter."""
    deleted: bool
    """The job itself is gone."""
    usage: JobUsage
    """In all."""
    efficiency: float | None = None
    """SM activity per observed GPU-second. Absent: the GPUs don't report it."""
    cost: float | None = None
    """Absent: no price is set for these GPUs."""
    unpriced_hours: float = 0.0
    """GPU-hours on devices without a price."""
    currency: str | None = None
    """Of the cost. Absent: no prices are set."""
    attempts: tuple[AttemptUsage, ...] = ()
    """By number."""
    gpus: tuple[GpuUsage, ...] = ()
    truncated: bool = False
    """There are more GPUs; `?attempt=` shows those of one attempt."""
    hints: tuple[Hint, ...] = ()
    note: str = ""
    """Why there is nothing, if there is nothing."""


class MetricCurve(StatusModel):
    """One metric in one attempt, in the order in which it was reported; point n is the n-th of each."""

    metric: str
    """Its name, as the job reports it."""
    attempt: int
    """Its number, from 1."""
    steps: tuple[int, ...]
    """Of the training."""
    times: tuple[float, ...]
    """Unix seconds."""
    values: tuple[float, ...]
    """Of the metric."""


class MetricColumns(TypedDict):
    """Points of curves as columns of the same length."""

    metric: list[str]
    attempt: list[int]
    step: list[int]
    time: list[float]
    """Unix seconds."""
    value: list[float]


class JobCurves(StatusModel):
    """What one job has reported of its training."""

    project: str
    """The job's."""
    job: str
    """Its name."""
    job_uid: str
    """Of this very job."""
    deleted: bool
    """The job itself is gone."""
    left_out: bool = False
    """It reported more metrics than are kept."""
    note: str = ""
    """Why there is nothing, if there is nothing."""
    curves: tuple[MetricCurve, ...] = ()
    """By metric, then by attempt."""

    def columns(self) -> MetricColumns:
        """All points, one row each, as a table's columns: what `pandas.DataFrame(…)` takes."""
        rows = MetricColumns(metric=[], attempt=[], step=[], time=[], value=[])
        for curve in self.curves:
            rows["metric"] += [curve.metric] * len(curve.steps)
            rows["attempt"] += [curve.attempt] * len(curve.steps)
            rows["step"] += curve.steps
            rows["time"] += curve.times
            rows["value"] += curve.values
        return rows


class WhoAmI(StatusModel):
    name: str
    """Whose token it is."""
    role: str
    """The nearest: reader, user or admin."""
    projects: tuple[str, ...]
    """Whose jobs it sees; `*`: all."""
    may: tuple[str, ...] = ()
    """The rights that the token has in the project asked for, and on what all share: `create trainingjobs`. Empty: an
    older server."""
    grafana: str = ""
    """Where the dashboards are, if the server knows a Grafana with them."""


class NewTicket(StatusModel):
    ticket: str
    """In place of a token in a link; good once."""
    good_s: float
    """For how many seconds."""


class TicketExchange(SpecModel):
    """The body of `POST /v1/sign-in-tickets/exchange`."""

    ticket: str = Field(min_length=1, max_length=128)
    """As `POST /v1/sign-in-tickets` gave it."""


class TicketToken(StatusModel):
    token: str
    """Of who made the ticket."""


class FileTicketRequest(SpecModel):
    """The body of `POST …/{name}/file-tickets`."""

    path: str = Field(min_length=1, max_length=4096)
    """Within the output folder, as the list of files has it."""


class JobEnd(StatusModel):
    """What `event: end` of a job's events carries."""

    phase: Phase
    reason: str = ""
    message: str = ""


class ScrapeTargetGroup(StatusModel):
    """One target, as Prometheus' HTTP service discovery has it."""

    targets: tuple[str, ...]
    """host:port"""
    labels: dict[str, str]
    """Of workers: job (stoker-workers), project, job_name, job_uid, attempt, worker, queue."""


class ServerVersion(StatusModel):
    version: str
    """Of the server."""
    api_version: str
    """Of the objects."""
    mode: Literal["OneMachine", "Cluster"]
    """What jobs may ask for here."""


class ProblemFault(StatusModel):
    pointer: str
    """Leads to the field (RFC 6901)."""
    detail: str
    """What is wrong with it."""
    in_: Annotated[str, Field(alias="in")] = "body"
    """Where the field is: body, query, header or path."""


class ProblemDocument(StatusModel):
    """RFC 9457."""

    type: str
    """A URI of the code."""
    title: str
    """What the code means."""
    status: int
    """The HTTP status."""
    detail: str
    """What happened here, and what to do."""
    code: str
    """Stable; clients branch on it."""
    errors: tuple[ProblemFault, ...]
    """The fields that are wrong, if it is about fields."""
    retryable: bool
    """The same request may pass later."""
    trace_id: str
    """Finds the request in the server's log."""
