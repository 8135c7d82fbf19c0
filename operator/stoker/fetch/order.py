"""What is to be fetched, as the process that starts us says it: JSON in STOKER_FETCH. Called by `__main__`."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One entry of a job's data."""

    name: str
    url: str
    entry: str
    """What it is called in the cache."""
    file_name: str
    """What the file is called for workers."""
    digest: str
    """SHA-256 in hex; '': not known before."""
    unpack: bool


@dataclass(frozen=True)
class Order:
    root: str
    """The cache."""
    project: str
    limit_bytes: int
    """The cache's."""
    free_share: float
    """Of the cache's disk, that stays free."""
    timeout_s: float
    """For all of it."""
    items: tuple[Item, ...]


def read_order(text: str) -> Order:
    """Raises: ValueError, KeyError, TypeError."""
    data = json.loads(text)
    items = tuple(Item(**item) for item in data.pop("items"))
    return Order(**data, items=items)
