"""How much code this server may hold: one account over all projects, safe for many threads.

Owns the limits and the sum. Bytes are taken before the first is written, so that two
uploads at once can't exceed it together.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.quantity import format_bytes
from stoker_api.disk import MIN_FREE_BYTES, free_bytes

LEASE_S = 3600.0
"""How long a file is safe that a client just sent, or learned is here: its bundle may not be stored yet."""
KEEP_S = 7 * 24 * 3600.0
TOTAL_BYTES = 20 << 30


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """Units: bytes, seconds."""

    total: int | None = TOTAL_BYTES
    """All projects together; None: as much as the disk takes."""
    min_free: int = MIN_FREE_BYTES
    """Left free on the disk."""
    keep_s: float = KEEP_S
    """How long a bundle stays that no job names, from its last use on; never under `LEASE_S`."""


class CodeFull(Exception):
    """Nothing more is taken now; the text says which limit was met."""


class CodeQuota:
    def __init__(self, folder: Path, limits: CodeLimits) -> None:
        self._folder, self._limits = folder, limits
        self._guard = threading.Lock()
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def count(self, size: int) -> None:
        """Something was found that is there already."""
        with self._guard:
            self._held += size

    def take(self, size: int) -> None:
        """Raises: CodeFull, OSError."""
        limits = self._limits
        if free_bytes(self._folder) - size < limits.min_free:
            raise CodeFull(f"less than {format_bytes(limits.min_free)} are free on the server's disk")
        with self._guard:
            if limits.total is not None and self._held + size > limits.total:
                raise CodeFull(f"all code together has reached the server's limit of {format_bytes(limits.total)}")
            self._held += size

    def give(self, size: int) -> None:
        with self._guard:
            self._held -= size
