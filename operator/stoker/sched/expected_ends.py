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

from .columns import Column, within
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
        self._began = self._until = np.zeros((0, _DEPTH))

    def waits(self, slots: Column, gpus: Column, now_s: float) -> Seconds:
        """Seconds until so many GPUs more than now are free on each slot."""
        self._refresh(now_s)
        at = slots * _DEPTH + (within(gpus, 1, _DEPTH) - 1)
        age = np.maximum(now_s - self._began.take(at), LEAST_S)
        waits: Seconds = np.maximum(np.minimum(age, self._until.take(at) - now_s), 0.0)
        return waits

    def _refresh(self, now_s: float) -> None:
        more = len(self._table.ready) - len(self._began)
        if more > 0:
            self._began, self._until = (
                np.concatenate([one, np.zeros((more, _DEPTH))]) for one in (self._began, self._until)
            )
        for slot in self._table.moved:
            self._began[slot], self._until[slot] = self._of(slot, now_s)
        self._table.moved.clear()

    def _of(self, slot: int, now_s: float) -> tuple[list[float], list[float]]:
        """When what holds the slot's GPUs began and ends at the latest, in the order in which it is expected to end."""
        table, entries = self._table, self._entries
        name, held, not_begun = table.names[slot], [], 0
        for key, (workers, request) in table.claims.get(name, {}).items():
            entry, gpus = entries.get(key), workers * request.gpus
            if not gpus:
                continue
            span = _NOT_BEGUN if entry is None else entry.span or _span(entry)
            if span is _NOT_BEGUN:
                not_begun += gpus
            else:
                began, until = span
                began = began if began < now_s else now_s
                left, longest = now_s - began, until - now_s
                left = left if left > LEAST_S else LEAST_S
                held.append((left if left < longest else longest, began, until, gpus))
        if not_begun:
            held.append((LEAST_S, now_s, _NEVER, not_begun))
        for taken in table.others.get(name, {}).values():
            if taken.terminating:
                held.append((0.0, now_s, now_s, taken.claim.gpus))
        held.sort()
        began_of, until_of = [now_s], [_NEVER]
        for _, began, until, gpus in held:
            began_of += [began] * gpus
            until_of += [until] * gpus
        return (began_of[1:] + began_of[-1:] * _DEPTH)[:_DEPTH], (until_of[1:] + until_of[-1:] * _DEPTH)[:_DEPTH]


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
