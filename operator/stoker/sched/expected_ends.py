"""When what runs on a node is expected to end.

Owns the guess. A job without stop.maxDuration is taken to run as long again as it has run, ten minutes at least (run
times are heavy-tailed: half of those that have lasted t last 2 t); one with it, no longer than that. A pod on its way
out ends now. Reads claims, changes nothing but its own columns, which follow from them. Called by `place.reserve`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stoker.spec.meta import Key
from stoker.spec.quantity import parse_duration

from .columns import Column
from .entries import Entry
from .nodes import NodeTable

Seconds = NDArray[np.float64]

LEAST_S = 600.0
_NEVER = float("inf")
_NOT_BEGUN = _NEVER, _NEVER
_DEPTH = 16
"""GPUs per node with an end of their own; those beyond end with the last of them."""


class ExpectedEnds:
    """Shape: (slots, _DEPTH): the job whose end frees the slot's n-th GPU began then, and ends at the latest then.

    Cost: O(claims) of the nodes whose claims changed since the last question, numpy for the rest.
    """

    def __init__(self, table: NodeTable, entries: Mapping[Key, Entry]) -> None:
        self._table, self._entries = table, entries
        self._began, self._until = np.zeros((0, _DEPTH)), np.zeros((0, _DEPTH))

    def waits(self, slots: Column, gpus: Column, now_s: float) -> Seconds:
        """Seconds until so many GPUs more than now are free on each slot."""
        self._refresh(now_s)
        nth = np.clip(gpus, 1, _DEPTH) - 1
        age = np.maximum(now_s - self._began[slots, nth], LEAST_S)
        waits: Seconds = np.maximum(np.minimum(age, self._until[slots, nth] - now_s), 0.0)
        return waits

    def _refresh(self, now_s: float) -> None:
        more = len(self._table.ready) - len(self._began)
        if more > 0:
            self._began = np.vstack([self._began, np.zeros((more, _DEPTH))])
            self._until = np.vstack([self._until, np.zeros((more, _DEPTH))])
        for slot in self._table.moved:
            self._fill(slot, now_s)
        self._table.moved.clear()

    def _fill(self, slot: int, now_s: float) -> None:
        name = self._table.names[slot]
        held = []
        for key, claim in self._table.claims.get(name, {}).items():
            entry = self._entries.get(key)
            began, until = _NOT_BEGUN if entry is None else entry.span or _span(entry)
            began = min(began, now_s)
            held.append((min(max(now_s - began, LEAST_S), until - now_s), began, until, claim.gpus))
        for taken in self._table.others.get(name, {}).values():
            if taken.terminating:
                held.append((0.0, now_s, now_s, taken.claim.gpus))
        began_of, until_of = [now_s], [_NEVER]
        for _, began, until, gpus in sorted(held):
            began_of += [began] * gpus
            until_of += [until] * gpus
        for column, values in ((self._began, began_of), (self._until, until_of)):
            column[slot] = (values[1:] + values[-1:] * _DEPTH)[:_DEPTH]


def _span(entry: Entry) -> tuple[float, float]:
    """When it began, and when it ends at the latest; kept with the entry, whose job never changes."""
    status, longest = entry.job.status, entry.job.spec.stop.max_duration
    at = status.started_at or status.placed_at
    if at is None:
        entry.span = _NOT_BEGUN
    else:
        began = at.timestamp()
        ends = _NEVER if longest is None else began + max(parse_duration(longest) - status.ran_s, 0.0)
        entry.span = began, ends
    return entry.span
