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
        self._due: dict[int, float] = {}
        """Slot whose holders have changed → when that was first asked about: as of then it is worked out."""

    def waits(self, slots: Column, gpus: Column, now_s: float) -> Seconds:
        """Seconds until so many GPUs more than now are free on each slot."""
        self._refresh(slots, now_s)
        at = slots * _DEPTH + (within(gpus, 1, _DEPTH) - 1)
        age = np.maximum(now_s - self._began.take(at), LEAST_S)
        waits: Seconds = np.maximum(np.minimum(age, self._until.take(at) - now_s), 0.0)
        return waits

    def _refresh(self, slots: Column, now_s: float) -> None:
        more = len(self._table.ready) - len(self._began)
        if more > 0:
            self._began, self._until = (
                np.concatenate([one, np.zeros((more, _DEPTH))]) for one in (self._began, self._until)
            )
        due, moved = self._due, self._table.moved
        if moved:
            due |= dict.fromkeys(moved, now_s)
            moved.clear()
        if due:  # of one slot only that: others may change again before they are asked about
            for slot in list(due) if len(slots) > 1 else slots.tolist():
                if slot in due:
                    self._began[slot], self._until[slot] = self._of(slot, due.pop(slot))

    def _of(self, slot: int, now_s: float) -> tuple[list[float], list[float]]:
        """When what holds the slot's GPUs began and ends at the latest, in the order in which it is expected to end."""
        table, entry_of = self._table, self._entries.get
        name, held, not_begun = table.names[slot], [], 0
        for key, (workers, request) in table.claims[name].items() if name in table.claims else ():
            gpus = workers * request[1]
            if not gpus:
                continue
            entry = entry_of(key)
            span = _NOT_BEGUN if entry is None else entry.span or _span(entry)
            if span is _NOT_BEGUN:
                not_begun += gpus
                continue
            began, until = span
            began = began if began < now_s else now_s
            left, longest = now_s - began, until - now_s
            left = left if left > LEAST_S else LEAST_S
            held.append((left if left < longest else longest, began, until, gpus))
        if not_begun:
            held.append((LEAST_S, now_s, _NEVER, not_begun))
        for taken in table.others[name].values() if name in table.others else ():
            if taken.terminating:
                held.append((0.0, now_s, now_s, taken.claim.gpus))
        if len(held) > 1:
            held.sort()
        began_of, until_of = list[float](), list[float]()
        for _, began, until, gpus in held:
            few = min(gpus, _DEPTH)  # another's pod may ask for any number
            began_of += [began] * few
            until_of += [until] * few
        rest = _DEPTH - len(began_of)
        if rest > 0:
            began_of += (began_of[-1:] or [now_s]) * rest
            until_of += (until_of[-1:] or [_NEVER]) * rest
        return began_of[:_DEPTH], until_of[:_DEPTH]


def _span(entry: Entry) -> tuple[float, float]:
    """When it began, and when it ends at the latest; kept with the entry, whose job never changes."""
    status = None if entry.pending or entry.assumed else entry.job.status
    at = None if status is None else status.started_at or status.placed_at
    if status is None or at is None:
        entry.span = _NOT_BEGUN
    else:
        began, longest = at.timestamp(), entry.job.spec.stop.max_duration
        ends = _NEVER if longest is None else began + max(parse_duration(longest) - status.ran_s, 0.0)
        entry.span = began, ends
    return entry.span
