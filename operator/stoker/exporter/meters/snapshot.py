"""What the meters show at one moment. Pure data; `serving.families` makes metric families of it.

Values are flat as in `frames`: a family's name without its prefix, the values of its own labels behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.exporter.owners import Owner


@dataclass(frozen=True, slots=True)
class Share:
    """One holding, for `allocation_share_ratio`."""

    uuid: str
    """Of the GPU or MIG device."""
    owner: Owner
    share: float
    """Of the device."""
    method: str


@dataclass(frozen=True, slots=True)
class MigState:
    uuid: str
    profile: str
    slices: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GpuState:
    index: int
    uuid: str
    info: Mapping[str, str] = field(default_factory=dict)
    """Labels of `info`; empty: not known now."""
    values: Mapping[str, float] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    mig: tuple[MigState, ...] = ()


@dataclass(frozen=True, slots=True)
class JobState:
    index: int
    uuid: str
    owner: Owner
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Books:
    """What the ledger holds. Shown only once it is on disk: a crash then never makes a counter fall."""

    accounts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """GPU's uuid → `account_seconds_total|…`, `account_joules_total|…`."""
    jobs: tuple[JobState, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: float
    """Unix seconds."""
    node: str
    gpus: tuple[GpuState, ...] = ()
    books: Books = Books()
    exporter: Mapping[str, float] = field(default_factory=dict)
    """Of `catalogue.EXPORTER`."""
    version: str = ""
