"""The worker's contract as the rest of Stoker reads and writes it (`docs/worker-contract.md`).

The supervisor is standard library only and has its own plain reading of the same JSON; `tests/contract` holds both
against each other. Files live in the worker's folder; each is written to a temporary name and renamed into place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import from_json

from .meta import StatusModel
from .pod import Pod

CONTRACT_VERSION = 1
MAX_UNIX_S = 253_402_300_799
"""The end of the year 9999: no calendar knows a later day."""

# The files of a worker's folder.
LAUNCH_FILE = "launch.json"  # written by the node agent before the spawn: the worker's whole order and its leases
LOCK_FILE = "lock"  # flock held from before the spawn until the supervisor ends: held = alive
STARTED_FILE = "started.json"  # the supervisor's first act, before any process of the user's
EXIT_FILE = "exit.json"  # the exit record: the supervisor's last act
PROGRESS_FILE = "progress.json"  # the newest progress, replaced by the trainer (or a user's script)
CODE_FOLDER = "code"  # the user's code, fetched and unpacked by the supervisor before any process of the user's
SESSIONS_FOLDER = "sessions"  # an empty file for each session the worker is to come for; it takes them away
STACKS_FILE = "stacks.txt"  # where the ranks stood when they were ended for making no progress
LOG_FILE = "log"  # what the worker printed, prefixed by rank where there are several


@dataclass(frozen=True, slots=True)
class LogPart:
    """Part of a worker's log. `size` is the whole log's now; `ended`: it will not grow any more."""

    data: bytes
    size: int
    ended: bool


class LaunchMode(StrEnum):
    PER_GPU = "perGpu"  # our trainer: one rank per GPU, at least one
    ONCE = "once"  # a user's command: one process, torchrun's environment beside it


class ReportTarget(StatusModel):
    """Where the supervisor posts progress. The token is bound to the pod."""

    url: str
    token: str


class Launch(StatusModel):
    """Everything a supervisor must know, complete: it asks no one else."""

    version: int = CONTRACT_VERSION
    pod_uid: str
    pod_name: str
    project: str
    job_name: str
    job_uid: str
    attempt: int
    worker: int
    workers: int
    mode: LaunchMode
    ranks: int
    """Processes to start in this worker; RANK = worker * ranks + LOCAL_RANK, WORLD_SIZE = workers * ranks."""
    argv: tuple[str, ...]
    working_dir: str
    env: Mapping[str, str] = {}
    grace_s: float
    gpu_uuids: tuple[str, ...] = ()
    simulated_gpus: bool = False
    master_addr: str = "127.0.0.1"
    master_port: int
    metrics_port: int | None = None
    peer_ports: tuple[int, ...] = ()
    """Of the gang's workers, in their order, where they share an address. Empty: each has its own."""
    log_bytes: int = 0
    """What the log may hold; 0: as much as the disk takes."""
    memory_group: str = ""
    """The control group that the supervisor joins, limited to the worker's memory; '': there is none."""
    report: ReportTarget | None = None


def _count(value: int) -> int:
    """What a job writes of itself comes to its status, and an attempt whose end no store takes would hold its place for
    ever. Raises: ValueError."""
    if not -(2**63) <= value < 2**63:
        raise ValueError("does not fit 64 bits")
    return value


def _storable(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {name: _storable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value) if abs(value) <= sys.float_info.max else None
    return value


def _storable_each(values: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The same with integers that a store takes: one beyond 64 bits as a float, one beyond those as null."""
    return {name: _storable(value) for name, value in values.items()}


_Count = Annotated[int, AfterValidator(_count)]
_UnixTime = Annotated[float, Field(ge=0, le=MAX_UNIX_S)]


class Checkpoint(StatusModel):
    """A saved state that training can go on from."""

    model_config = ConfigDict(allow_inf_nan=False)

    step: _Count
    """The steps it holds."""
    path: str = ""
    """Its folder, as the worker sees it."""
    at: float | None = None
    """Unix time in seconds when it was new. Absent: not known."""


class Held(StatusModel):
    """A worker whose command failed is kept for a look inside (onFailure.hold)."""

    worker: _Count = 0
    """Its number, from 0; the api writes it, of a gang that of the first to fail."""
    since: float = Field(ge=0, le=MAX_UNIX_S)
    """Unix time in seconds."""
    until: float = Field(ge=0, le=MAX_UNIX_S)
    """Unix time in seconds, at the latest."""
    exit_code: _Count
    """What the command ended with; 128 + n where signal n ended it."""
    message: str = ""
    """One line for people, as in the exit record."""


class Stalled(StatusModel):
    """Worker 0 makes no progress (stall.after): stacks are being saved, then the gang's ranks are ended."""

    attempt: _Count
    """The attempt it is about."""
    since: float = Field(ge=0, le=MAX_UNIX_S)
    """Unix time in seconds of the last change of the step."""
    until: float = Field(ge=0, le=MAX_UNIX_S)
    """Unix time in seconds at which the ranks are ended."""
    step: _Count = 0
    """Where it stands."""
    message: str = ""
    """One line for people, as in the exit record."""


class Progress(StatusModel):
    """How far the training is. A user's script may write the same file (`$STOKER_PROGRESS_FILE`)."""

    model_config = ConfigDict(allow_inf_nan=False)

    at: float
    """Unix time in seconds."""
    step: _Count = 0
    """Optimizer steps done."""
    step_at: float | None = None
    """Unix time in seconds of the last change of `step`. Absent: not known."""
    total_steps: _Count | None = None
    """Absent: not known."""
    epoch: _Count | None = None
    """Passes over the data done."""
    samples: _Count | None = None
    """Samples seen."""
    metrics: Mapping[str, float] = {}
    """loss, accuracy, samplesPerSecond, learningRate, lossScale, …: the newest of each."""
    checkpoint: Checkpoint | None = None
    """The newest."""
    summary: Annotated[Mapping[str, JsonValue], AfterValidator(_storable_each)] = {}
    """What the end table shows: accuracy, timeToTarget_s, splitDigest, weights, …; filled at the end."""
    stalled: Stalled | None = None
    """The supervisor's: no change of `step` for too long."""
    held: Held | None = None
    """The supervisor's: the command has failed and its worker is kept for a while."""


class RankExit(StatusModel):
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    at: float


class ExitRecord(StatusModel):
    """How a worker ended, as its supervisor reports it, or the job's own image where that runs no supervisor."""

    model_config = ConfigDict(allow_inf_nan=False)

    version: int = CONTRACT_VERSION
    pod_uid: str
    started_at: _UnixTime
    finished_at: _UnixTime
    stop_requested: bool
    """The supervisor received SIGTERM before the first rank ended."""
    exit_code: _Count
    """0 if every rank was done, else the first failure's exit code, 128 + n where signal n ended it."""
    signal: int | None = None
    """The signal that ended the first failing rank, if one did."""
    failed_rank: int | None = None
    failed_at: float | None = None
    """When the first failure was seen; of a gang the earliest is the cause."""
    ranks: tuple[RankExit, ...] = ()
    grace_exceeded: bool = False
    """The ranks outlived the grace and were killed."""
    stalled: bool = False
    """The ranks were ended for making no progress: whatever they ended with, that is the cause."""
    out_of_memory: bool = False
    """A user's command failed, and its last line names torch's OutOfMemoryError."""
    memory_killed: bool = False
    """Before the first failure the kernel had killed a process of the worker for lack of memory."""
    memory_peak_bytes: _Count | None = None
    """The most memory that its processes held together. Absent: no control group of its own, or an old kernel."""
    held_s: float = Field(default=0.0, ge=0)
    """How long the worker was kept after the failure, before this end."""
    message: str = ""
    """One line for people: the last line of the failing rank's output, or what the supervisor met."""
    progress: Progress | None = None
    """The last progress that was written; its checkpoint is what a resume starts from."""
    log_bytes: int = 0


def exit_record(pod: Pod) -> ExitRecord | None:
    """The exit record in the pod's termination message; None: there is none, or it is another pod's.

    Supervisor and node agent keep a record within 4,096 bytes. A pod with more than three containers gets less from the
    kubelet: of a record that was cut there the whole fields count.
    Source: Kubernetes, "Determine the Reason for Pod Failure" (12 KiB for all containers together).
    """
    terminated = pod.terminated
    if terminated is None or not terminated.message.startswith("{"):
        return None
    try:
        found = from_json(terminated.message, allow_partial=True)
        record = ExitRecord.model_validate(found)
    except ValidationError as error:
        torn = {fault["loc"][0] for fault in error.errors()}
        try:
            record = ExitRecord.model_validate({name: value for name, value in found.items() if name not in torn})
        except ValidationError:
            return None
    except ValueError:
        return None
    return record if record.pod_uid == pod.uid else None
