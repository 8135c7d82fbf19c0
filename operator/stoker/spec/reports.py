"""The contract of `/v1/report/…`: what workers and exporters post, and the api's answers.

Supervisor and exporter import no pydantic and have their own plain reading and writing of the same JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .gpu_health import MOST_GPUS, GpuHolder
from .meta import StatusModel
from .usage import MAX_COUNT, MAX_RECEIPTS
from .worker import MAX_UNIX_S, Progress

_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class WorkerReport(StatusModel):
    """Which worker speaks: the body of `POST /v1/report/alive`.

    Unknown fields (a newer supervisor's) are left aside.
    """

    pod_uid: Annotated[str, Field(max_length=128)]
    """The worker's."""
    job_uid: Annotated[str, Field(max_length=128)]
    """Whose worker it is."""
    project: Annotated[str, Field(max_length=63, pattern=_NAME)]
    """The job's."""
    job_name: Annotated[str, Field(max_length=63, pattern=_NAME)]
    """The job's."""
    attempt: Annotated[int, Field(ge=0)]
    """Of the job."""
    worker: Annotated[int, Field(ge=0)]
    """Its number, from 0."""


class ProgressReport(WorkerReport):
    """The body of `POST /v1/report/progress`."""

    progress: Progress


class StopOrder(StatusModel):
    """Whether the worker is to go on: in answers to its reports."""

    stop: bool = False
    """This worker is not wanted any more: it is to save and to end, as if its node had asked it to."""
    why: str = ""
    """For the worker's log."""


class StallOrder(StatusModel):
    """The worker's gang makes no progress: it is to save its stacks now, and to end its ranks then."""

    in_s: float
    """Seconds from now until the whole gang's ranks are ended."""
    why: str
    """For the worker's log and exit record."""


class AliveAnswer(StopOrder):
    """The answer to `POST /v1/report/alive`."""

    stalled: StallOrder | None = None
    """Absent: it is not."""

    sessions: tuple[str, ...] = ()
    """Clients wait for this worker in these sessions (`/v1/report/sessions/{id}`); absent: none."""


class ReaderAnswer(StatusModel):
    """The answer to `GET /v1/report/reader`, which the pod asks that reads a job's files."""

    sessions: tuple[str, ...]
    """The sessions it is to come to (`/v1/report/sessions/{id}`)."""


class LogAnswer(AliveAnswer):
    """The answer to `POST /v1/report/log`: a worker that ships its log asks nothing else."""

    offset: int
    """How much of the worker's log is held without a gap: where the next piece is to begin."""


class ReceiptsReport(StatusModel):
    """The body of `POST /v1/report/usage`: what the node's exporter counted."""

    node: Annotated[str, Field(max_length=253)]
    """The exporter's own."""
    receipts: Annotated[tuple[dict[str, Any], ...], Field(max_length=MAX_RECEIPTS)]
    """As `GpuReceipt`; each is read by itself, so that a wrong one costs no other."""


class ReceiptRefused(StatusModel):
    index: int
    """Into the report's receipts."""
    why: str
    """For the exporter's log; the same receipt will be refused again."""


class ReceiptsAnswer(StatusModel):
    """The answer to `POST /v1/report/usage`."""

    taken: int
    """On the disk now, those that were there already among them."""
    refused: tuple[ReceiptRefused, ...]
    """Those that are wrong."""


class PodName(StatusModel):
    namespace: Annotated[str, Field(max_length=63)]
    """The pod's."""
    name: Annotated[str, Field(max_length=253)]
    """The pod's."""


class OwnersQuery(StatusModel):
    """The body of `POST /v1/report/owners`: pods that hold GPUs of the exporter's node."""

    pods: Annotated[tuple[PodName, ...], Field(max_length=1024)]
    """Of which the exporter asks."""


class PodOwner(StatusModel):
    """A pod, and the worker it is; jobUid is empty where it is none of Stoker's."""

    namespace: str
    """The pod's."""
    name: str
    """The pod's."""
    pod_uid: str
    """The pod's."""
    job_uid: str = ""
    """Whose worker it is."""
    project: str = ""
    """The job's."""
    job_name: str = ""
    """The job's."""
    attempt: int = 0
    """Of the job."""
    worker: int = 0
    """Its number, from 0."""
    ended: bool = False
    """It holds nothing any more; kubelets before 1.34 list its devices nevertheless."""


class OwnersAnswer(StatusModel):
    """The answer to `POST /v1/report/owners`; pods that are not known (yet) are left out."""

    owners: tuple[PodOwner, ...]


class JobHolder(StatusModel):
    """A job that held the GPU."""

    job_uid: Annotated[str, Field(max_length=64)]
    """Of this very job."""
    project: Annotated[str, Field(max_length=63)]
    """The job's."""
    job_name: Annotated[str, Field(max_length=63)]
    """The job's."""


class ReportedGpuEvent(StatusModel):
    """Something that happened to a GPU."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    """The exporter's; of one id one event is written."""
    at: Annotated[float, Field(ge=0, le=MAX_UNIX_S)]
    """Unix time in seconds."""
    uuid: Annotated[str, Field(max_length=128)]
    """The GPU's."""
    index: int
    """The GPU's on its node."""
    kind: Literal["xid", "lost", "recovered", "recovery_action", "mig_changed"]
    """What happened."""
    code: int = 0
    """The XID, or the recovery action."""
    text: Annotated[str, Field(max_length=1024)] = ""
    """The same, for people."""
    owners: Annotated[tuple[JobHolder, ...], Field(max_length=64)] = ()


class GpuEventsReport(StatusModel):
    """The body of `POST /v1/report/gpu-events`."""

    node: Annotated[str, Field(max_length=253)]
    """The exporter's own."""
    events: Annotated[tuple[ReportedGpuEvent, ...], Field(max_length=256)]


class GpuEventsAnswer(StatusModel):
    """The answer to `POST /v1/report/gpu-events`."""

    taken: int
    """Events that are known now, those that were known among them."""


class ReportedXid(StatusModel):
    """The newest XID of one number."""

    code: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    """Its number."""
    at: Annotated[float, Field(ge=0, le=MAX_UNIX_S)]
    """Unix time in seconds."""


class ReportedGpu(StatusModel):
    """How a GPU is, as the exporter reads it now. What is not known is absent."""

    model_config = ConfigDict(allow_inf_nan=False)

    uuid: Annotated[str, Field(min_length=1, max_length=128)]
    """The GPU's."""
    index: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    """Its number on the node."""
    model: Annotated[str, Field(max_length=128)] = ""
    """As its driver names it."""
    memory_bytes: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    """Of the device."""
    compute_capability: Annotated[str, Field(max_length=8)] | None = None
    """What its CUDA cores can do (9.0)."""
    power_limit_watts: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """What it may draw."""
    lost: bool = False
    """It can't be read any more."""
    recovery_action: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    """What the driver asks for: 1 reset, 2 reboot, 3 and 4 drain; 0: nothing."""
    row_remap_pending: bool = False
    """A reset would replace rows of its memory."""
    row_remap_failed: bool = False
    """Rows of its memory can't be replaced any more."""
    throttled: bool = False
    """Held down by the hardware for a good part of the last minutes."""
    uncorrected_errors: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = None
    """Of memory, since the driver was loaded."""
    xids: Annotated[tuple[ReportedXid, ...], Field(max_length=256)] = ()
    """Since the exporter began."""
    holders: Annotated[tuple[GpuHolder, ...], Field(max_length=64)] = ()
    """Attempts of jobs that have it, or a part of it."""


class GpusReport(StatusModel):
    """The body of `POST /v1/report/gpus`: all GPUs that the exporter can say something of."""

    node: Annotated[str, Field(max_length=253)]
    """The exporter's own."""
    gpus: Annotated[tuple[ReportedGpu, ...], Field(max_length=MOST_GPUS)]
    """By index."""


class GpusAnswer(StatusModel):
    """The answer to `POST /v1/report/gpus`."""

    taken: int
    """GPUs of the report."""
