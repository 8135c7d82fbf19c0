"""How an attempt ended and what follows: exit codes, failure categories and the one outcome table.

The operator, the simulator, the docs and the tests read the same table. Exit codes count only with our own exit record
beside them (docs/worker-contract.md): a user's script may exit 75 of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from .worker import ExitRecord


class ExitCode(IntEnum):
    """What our trainer's exit codes mean; a user's own command gets only DONE and "else"."""

    DONE = 0
    BAD_CONFIG = 64
    STOPPED = 75
    OUT_OF_MEMORY = 76
    DIVERGED = 77
    STALLED = 78
    DEVICE_UNAVAILABLE = 79


class Category(StrEnum):
    """Why an attempt ended without success. A retry rule names these."""

    USER_ERROR = "UserError"
    BAD_CONFIG = "BadConfig"
    OUT_OF_MEMORY = "OutOfMemory"
    DIVERGED = "Diverged"
    STALLED = "Stalled"
    DEVICE_UNAVAILABLE = "DeviceUnavailable"
    KILLED = "Killed"
    NODE_LOST = "NodeLost"
    REJECTED = "Rejected"
    IMAGE = "ImageUnavailable"
    VOLUME = "VolumeUnavailable"
    SECRET_MISSING = "SecretMissing"
    DATA = "DataUnavailable"
    START_TIMEOUT = "StartTimeout"
    INTERRUPTED = "Interrupted"
    MAX_DURATION = "MaxDuration"


class Intent(StrEnum):
    """What Stoker itself had asked of the attempt before it ended; recorded in status before any pod is stopped."""

    NONE = "None"
    SUSPEND = "Suspend"
    CANCEL = "Cancel"
    MAX_DURATION = "MaxDuration"
    PREEMPT = "Preempt"
    RESIZE = "Resize"
    WITHDRAW = "Withdraw"


class ExitZero(StrEnum):
    """What exit 0 of a user's command means after a stop request."""

    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"


class Verdict(StrEnum):
    """What becomes of the job."""

    SUCCEEDED = "Succeeded"
    SUSPENDED = "Suspended"
    CANCELLED = "Cancelled"
    REQUEUE = "Requeue"  # back to its queue position, no retry spent
    RETRY = "Retry"  # back to the queue if the category's retries last, else Failed
    FAILED = "Failed"


@dataclass(frozen=True)
class Policy:
    """A category's default: how many retries, the first back-off, whether a user may raise the limit, and why."""

    limit: int
    backoff_s: float
    raisable: bool
    says: str


POLICIES: dict[Category, Policy] = {
    Category.USER_ERROR: Policy(0, 10, True, "the command failed"),
    Category.BAD_CONFIG: Policy(0, 0, False, "the trainer refused its configuration; correct it and submit again"),
    Category.OUT_OF_MEMORY: Policy(0, 10, True, "out of GPU memory (a recipe: with one sample); request a larger GPU"),
    Category.DIVERGED: Policy(0, 0, False, "the loss diverged; lower the learning rate or change the precision"),
    Category.STALLED: Policy(2, 10, True, "no progress for too long"),
    Category.DEVICE_UNAVAILABLE: Policy(3, 10, True, "a GPU of the worker can't be used; its node is avoided"),
    Category.KILLED: Policy(3, 5, True, "a process was killed from outside (often by the kernel for lack of memory)"),
    Category.NODE_LOST: Policy(8, 5, True, "the node or the worker's supervisor was lost"),
    Category.REJECTED: Policy(0, 1, False, "the node refused the worker"),
    Category.IMAGE: Policy(2, 30, True, "the image can't be pulled"),
    Category.VOLUME: Policy(4, 60, True, "a volume can't be mounted, or a folder of one is refused"),
    Category.DATA: Policy(2, 30, True, "data that the job names by url could not be fetched"),
    Category.SECRET_MISSING: Policy(0, 1, False, "a secret of secretEnv does not exist; the job waits for it"),
    Category.START_TIMEOUT: Policy(0, 1, False, "the gang was not fully running in time and was withdrawn"),
    Category.INTERRUPTED: Policy(0, 1, False, "stopped from outside"),
    Category.MAX_DURATION: Policy(0, 0, False, "stop.maxDuration was reached"),
}

# A gang withdrawn for one of these spends a retry: what the job asks for is not there.
_ASKED_FOR = frozenset({Category.IMAGE, Category.VOLUME})
# Back to the queue without spending a retry: nothing the job did. (With a back-off, so that a bad node can't spin.)
FREE = frozenset({Category.REJECTED, Category.SECRET_MISSING, Category.START_TIMEOUT, Category.INTERRUPTED})

_BY_EXIT_CODE = {
    ExitCode.BAD_CONFIG: Category.BAD_CONFIG,
    ExitCode.OUT_OF_MEMORY: Category.OUT_OF_MEMORY,
    ExitCode.DIVERGED: Category.DIVERGED,
    ExitCode.STALLED: Category.STALLED,
    ExitCode.DEVICE_UNAVAILABLE: Category.DEVICE_UNAVAILABLE,
}


def worker_category(
    record: ExitRecord | None,
    *,
    rejected: bool,
    own_trainer: bool,
    gang_stopped: bool = False,
    exit_zero: ExitZero = ExitZero.SUCCEEDED,
) -> Category | None:
    """Why one worker ended, or None if it was done.

    `record` is its exit record, None where the supervisor left none (killed, node lost). `rejected` says the node
    refused to start it. `own_trainer` says that our trainer ran, whose exit codes mean something; a user's command may
    use any code for itself. `gang_stopped` says that a worker of its gang received a stop: our trainer's ranks agree
    on that among themselves, so the others end with STOPPED without a request. `exit_zero` says what exit 0 of a
    user's command means after a stop request; our trainer's 0 always means done.
    """
    if rejected:
        return Category.REJECTED
    if record is None:
        return Category.NODE_LOST
    if record.stalled:  # the supervisor's own word, whatever code the command left
        return Category.STALLED
    if record.exit_code == ExitCode.DONE and record.signal is None:
        stopped = record.stop_requested and exit_zero is ExitZero.STOPPED and not own_trainer
        return Category.INTERRUPTED if stopped else None
    if record.stop_requested or (gang_stopped and own_trainer and record.exit_code == ExitCode.STOPPED):
        return Category.INTERRUPTED
    if record.memory_killed:  # the command itself, or a child that it did not go on without
        return Category.KILLED
    if record.signal is not None:
        return Category.KILLED if record.signal == 9 else Category.USER_ERROR
    if record.out_of_memory:  # the supervisor's word about a command, whose exit code says nothing
        return Category.OUT_OF_MEMORY
    if own_trainer and record.exit_code in _BY_EXIT_CODE:
        return _BY_EXIT_CODE[ExitCode(record.exit_code)]
    return Category.USER_ERROR


def verdict(intent: Intent, category: Category | None) -> Verdict:
    """What becomes of a job whose attempt ended by `category` (None: all workers done) while `intent` was recorded.

    Work that is done is done, whatever was asked meanwhile. Under a recorded intent every other end is that intent's,
    but for failures that stopping can't explain and that would only come again.
    """
    if category is None:
        return Verdict.SUCCEEDED
    if intent is Intent.CANCEL:
        return Verdict.CANCELLED
    if intent is Intent.MAX_DURATION or category in (Category.MAX_DURATION, Category.BAD_CONFIG, Category.DIVERGED):
        return Verdict.FAILED
    if intent is Intent.SUSPEND:
        return Verdict.SUSPENDED
    if intent in (Intent.PREEMPT, Intent.RESIZE) or (intent is Intent.WITHDRAW and category not in _ASKED_FOR):
        return Verdict.REQUEUE
    return Verdict.REQUEUE if category in FREE else Verdict.RETRY
