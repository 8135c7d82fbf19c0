"""How a rank ends, as exit codes and as the exceptions that carry them. Raised everywhere, read by `main`.

The numbers are the worker's contract (`stoker.spec.outcome.ExitCode`); `tests/trainer` compares both.
"""

from __future__ import annotations

DONE = 0
FAILED = 1
BAD_CONFIG = 64
STOPPED = 75
OUT_OF_MEMORY = 76
DIVERGED = 77
STALLED = 78
DEVICE_UNAVAILABLE = 79


_MESSAGES = (
    "can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "out of memory",
    "could not create a primitive",  # all that oneDNN says of it
)


def out_of_memory(error: BaseException) -> bool:
    """Of host or device: torch.OutOfMemoryError, or what its CPU allocator and libraries raise instead."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or any(message in str(error) for message in _MESSAGES)
    return isinstance(error, MemoryError)


class TrainerError(Exception):
    """An end with a known cause: one line for people, and the exit code."""

    exit_code = FAILED


class BadConfig(TrainerError):
    """The job can't run as it is written; running it again changes nothing."""

    exit_code = BAD_CONFIG


class Stopped(TrainerError):
    """Asked to stop, and did; the message says what was saved."""

    exit_code = STOPPED


class OutOfMemory(TrainerError):
    """Out of memory with one sample per micro-batch."""

    exit_code = OUT_OF_MEMORY


class Diverged(TrainerError):
    """The gradient stayed non-finite for too many steps in a row."""

    exit_code = DIVERGED


class Stalled(TrainerError):
    """Another rank is there but did not answer in time."""

    exit_code = STALLED


class DeviceUnavailable(TrainerError):
    """The GPU this rank was promised can't be used; another node's may."""

    exit_code = DEVICE_UNAVAILABLE


class PeerLost(TrainerError):
    """Another rank went away in the middle of a collective."""


class Superseded(TrainerError):
    """A newer attempt of the same job has claimed the checkpoint folder."""
