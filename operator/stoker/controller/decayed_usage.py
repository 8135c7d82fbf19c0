"""What a queue held on average of late: a moving average whose weights halve with each half-life.

Pure; called by `queues`. Between two looks the queue counts as having held what it did at the first of them.
"""

from __future__ import annotations

from datetime import datetime

from stoker.spec.quantity import exact_bytes, exact_cpu
from stoker.spec.queue import DecayedUsage

WRITE_EVERY_S = 60.0
_MATTERS = 0.01
"""A change of any amount by less than this part of it is not written."""

Amounts = tuple[float, ...]
"""GPUs, thousandths of a core, bytes."""


class MovingAverage:
    """Of one queue."""

    def __init__(self, written: DecayedUsage, held: Amounts, now: datetime) -> None:
        """`written`: what its status says; `held`: now, and for want of better knowledge since then."""
        self._value: Amounts = written.amounts
        self._held, self._at = held, written.at or now

    def advance(self, now: datetime, held: Amounts, half_life_s: float) -> None:
        """To now; `held`: from now on."""
        passed_s = max(0.0, (now - self._at).total_seconds())
        left = 0.5 ** (passed_s / half_life_s)
        self._value = tuple(of + (was - of) * left for was, of in zip(self._value, self._held, strict=True))
        self._held, self._at = held, now

    @property
    def is_settled(self) -> bool:
        """It stays as it is while the queue holds what it does."""
        return not _differ(self._value, self._held)

    def written(self, before: DecayedUsage) -> DecayedUsage:
        """What the status is to say."""
        if before.at is not None and (self._at - before.at).total_seconds() < WRITE_EVERY_S:
            return before
        gpus, cpu, memory = self._value
        now = DecayedUsage(
            gpus=round(gpus, 3),
            cpu=exact_cpu(round(cpu)),
            memory=exact_bytes(round(memory / 2**20) * 2**20),
            at=self._at,
        )
        return now if _differ(now.amounts, before.amounts) else before


def _differ(one: Amounts, other: Amounts) -> bool:
    return any(abs(a - b) > _MATTERS * max(a, b) for a, b in zip(one, other, strict=True))
