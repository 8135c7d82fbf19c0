"""Who holds which GPU, as the meters need it. Pure data; `allocation/` finds it out, `meters/` accounts by it.

Invariant: the shares of one uuid sum to at most 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Owner:
    """A pod that holds GPUs; with a job if it is a worker of Stoker's."""

    pod_namespace: str
    pod_name: str
    pod_uid: str = ""
    """Empty until it is known."""
    job_uid: str = ""
    """Empty: not a worker of Stoker's, or not known yet."""
    project: str = ""
    job_name: str = ""
    attempt: int = 0
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """One owner's hold on one GPU or MIG device."""

    uuid: str
    """Of the GPU or the MIG device."""
    owner: Owner
    share: float = 1.0
    """Of the device's time and energy. 1/n of n owners of a shared GPU where nothing better is known."""
    method: str = "exclusive"
    """How the share came about: exclusive, even, mig_slices."""
    since_s: float | None = None
    """CLOCK_BOOTTIME seconds since when, where that is known better than by when it was seen."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """All that is held on this node at one moment."""

    mono_s: float
    """CLOCK_BOOTTIME seconds when it was true."""
    holdings: tuple[Holding, ...] = ()
    known: bool = True
    """False: it is not known now; GPU time is then unobserved, never unallocated."""
    unattributed: dict[str, int] = field(default_factory=dict)
    """Why devices could not be attributed → how many: `dra_device_unknown`, `device_id_unknown`, `owner_unknown`, …"""
    doubtful: tuple[str, ...] = ()
    """Uuids of GPUs and MIG devices that may be held, for a device that is held can't be resolved to a uuid: their time
    is unobserved, as with `known=False`, never unallocated."""
    ended_s: dict[str, float] = field(default_factory=dict)
    """Pod's uid → CLOCK_BOOTTIME seconds of its end, of pods that have ended lately, where that is known."""
    brief: tuple[Holding, ...] = ()
    """What began and ended since the allocation before; its end is in `ended_s`."""
    simulated: tuple[str, ...] = ()
    """Uuids that are slots, not devices (`stoker up --virtual-gpus`)."""


class Allocations(Protocol):
    """Called from a thread of its own; never on the polling path."""

    def read(self) -> Allocation:
        """What is held now. Never raises: what can't be read is `known=False`, with the reason in `unattributed`."""
        ...
