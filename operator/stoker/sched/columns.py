"""Columns for one class of requests each, kept while a request uses it: GPUs of a kind, open nodes, a resource.

Owns the shapes; `nodes` fills them. A slot is a node's index in every column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.spec.meta import Key

from .gpu_groups import Claim

Column = NDArray[np.int64]  # slot -> number
Mask = NDArray[np.bool_]  # slot -> whether


def within(column: Column, least: int, most: int) -> Column:
    """As np.clip, which spends more on its checks than on a thousand numbers."""
    found: Column = np.minimum(np.maximum(column, least), most)
    return found


class Holder(NamedTuple):
    """A pod that takes room outside its job's placement."""

    key: Key
    ours: bool
    """A former attempt's, a deleted job's, or one that requests more than its job."""


class ForeignClaim(NamedTuple):
    """What such a pod takes of its node."""

    claim: Claim
    terminating: bool
    """It is being deleted, so its claim will be free soon."""


@dataclass(slots=True)
class GpuView:
    """One filter's view of the GPUs. Invariant: a request may use min(free_gpu, room) of a node."""

    arrays: ClassVar[tuple[str, ...]] = ("rest", "room")
    rest: Column
    """Usable matching GPUs of the empty node, less what lasting holders outside the jobs may have."""
    room: Column
    users: int = 0


@dataclass(slots=True)
class ExtendedView:
    """One extended resource."""

    arrays: ClassVar[tuple[str, ...]] = ("rest", "free")
    rest: Column
    free: Column
    users: int = 0


@dataclass(slots=True)
class EligibleNodes:
    """The nodes that are ready and let a filter's workers in."""

    arrays: ClassVar[tuple[str, ...]] = ("open",)
    open: Mask
    users: int = 0


@dataclass(slots=True)
class DomainView:
    """One level of the topology: each node's domain; 0 where a label is lacking."""

    arrays: ClassVar[tuple[str, ...]] = ("ids",)
    ids: Column


View = GpuView | ExtendedView | EligibleNodes | DomainView
