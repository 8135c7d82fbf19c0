"""What waits to be sent, as the JSON text it is sent as. Bounded, pure; not thread-safe (the reporter has the lock).

Of one receipt key only the newest waits. Where there is no room, what the next receipt makes good goes first: the
oldest that is not final; then the oldest. Of events the oldest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stoker.exporter.receipts import Receipt

MAX_WAITING_RECEIPTS = 8192
"""About 6 MB: the api may be away for 17 h of one-minute jobs on 8 GPUs."""
MAX_WAITING_EVENTS = 1000
KEEP_FINAL_S = 30 * 86_400.0
MAX_RECEIPTS = 2048
MAX_EVENTS = 256
"""In one post, as the api takes them."""
MAX_BATCH_BYTES = 900_000
"""Of them too, to leave room on slow lines."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A receipt or an event on its way."""

    key: Key
    text: str
    """JSON."""
    at: float
    """Unix seconds."""
    seq: int = 0
    final: bool = False


def receipt_item(data: dict[str, Any]) -> OutboxItem:
    """From what `Receipt.as_json` returns. Raises: ValueError, KeyError, TypeError if it is none."""
    key = tuple(str(data[name]) for name in ("ledger", "node", "uuid", "jobUid", "attempt", "worker"))
    return OutboxItem(key, _render(data), float(data["at"]), int(data["seq"]), bool(data["final"]))


def event_item(data: dict[str, Any]) -> OutboxItem:
    """Raises: ValueError, KeyError, TypeError if it is none."""
    return OutboxItem((str(data["id"]),), _render(data), float(data["at"]))


class Receipts:
    """The newest receipt of each key that the api has not taken."""

    def __init__(self, limit: int = MAX_WAITING_RECEIPTS) -> None:
        self._limit = limit
        self._waiting: dict[Key, OutboxItem] = {}
        self._settled: dict[Key, int] = {}
        self._offered: set[Key] = set()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, receipt: Receipt) -> bool:
        """Whether it is news that must not wait. Raises: ValueError if a figure of it is none (NaN)."""
        item = receipt_item(receipt.as_json())
        self._offered.add(item.key)
        return self.put(item) and item.final

    def forget_settled(self) -> None:
        """Of what was not offered since the last call: such a hold is over and won't be offered again."""
        self._settled = {key: seq for key, seq in self._settled.items() if key in self._offered}
        self._offered.clear()

    def put(self, item: OutboxItem) -> bool:
        """Whether it is news."""
        before = self._waiting.get(item.key)
        if item.seq <= self._settled.get(item.key, -1) or (before is not None and item.seq <= before.seq):
            return False
        self._waiting.pop(item.key, None)
        self._waiting[item.key] = item
        while len(self._waiting) > self._limit:
            self._drop(next((one for one in self._waiting.values() if not one.final), _oldest(self._waiting)))
            self.dropped += 1
        return True

    def expire(self, now_at: float) -> None:
        for item in [one for one in self._waiting.values() if now_at - one.at > KEEP_FINAL_S]:
            self._drop(item)
            self.dropped += 1

    def batch(self) -> list[OutboxItem]:
        """What to send next: final ones first."""
        return within_bounds(sorted(self._waiting.values(), key=lambda item: not item.final), MAX_RECEIPTS)

    def settle(self, item: OutboxItem) -> None:
        """The api has it, or will never take it. A newer one may wait by now."""
        self._settled.pop(item.key, None)
        self._settled[item.key] = item.seq
        while len(self._settled) > self._limit:
            del self._settled[next(iter(self._settled))]
        self._drop(item)

    def items(self) -> list[OutboxItem]:
        return list(self._waiting.values())

    def _drop(self, item: OutboxItem) -> None:
        if self._waiting.get(item.key) is item:
            del self._waiting[item.key]


class WaitingEvents:
    """GPU events that the api has not taken, oldest first."""

    def __init__(self, limit: int = MAX_WAITING_EVENTS) -> None:
        self._limit = limit
        self._waiting: dict[Key, OutboxItem] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: OutboxItem) -> None:
        self._waiting[item.key] = item
        while len(self._waiting) > self._limit:
            self.settle(_oldest(self._waiting))
            self.dropped += 1

    def batch(self) -> list[OutboxItem]:
        return within_bounds(self._waiting.values(), MAX_EVENTS)

    def settle(self, item: OutboxItem) -> None:
        """The api has it, or will never take it."""
        self._waiting.pop(item.key, None)

    def items(self) -> list[OutboxItem]:
        return list(self._waiting.values())


def within_bounds(items: Iterable[OutboxItem], count: int) -> list[OutboxItem]:
    """The first that fit one post; at least one."""
    batch: list[OutboxItem] = []
    size = 0
    for item in items:
        size += len(item.text) + 1
        if batch and (size > MAX_BATCH_BYTES or len(batch) >= count):
            break
        batch.append(item)
    return batch


def _oldest(waiting: dict[Key, OutboxItem]) -> OutboxItem:
    return next(iter(waiting.values()))


def _render(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
