"""What a queue held on average of late: a moving average whose weights halve with each half-life.

Pure; called by `queues`. Between two looks the queue counts as having held what it did at the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from stoker.spec.quantity import exact_bytes, exact_cpu
from stoker.spec.queue import DecayedUsage

WRITE_EVERY_S = 60.0
_MATTERS = 0.01
"""A change of any amount by less than this part of it is not written."""

Amounts = Mapping[str, float]
"""GPUs as gpus, of each type as gpus.<type>; thousandths of a core as cpu, bytes as memory. Absent: none."""
_OF_TYPE = "gpus."


class MovingAverage:
    """Of one queue."""

    def __init__(self, written: DecayedUsage, held: Amounts, now: datetime) -> None:
        """`written`: what its status says; `held`: now, and for want of better knowledge since then."""
        self._value: Amounts = _amounts(written)
        self._held, self._at = held, written.at or now

    def advance(self, now: datetime, held: Amounts, half_life_s: float) -> None:
        """To now; `held`: from now on."""
        passed_s = max(0.0, (now - self._at).total_seconds())
        left = 0.5 ** (passed_s / half_life_s)
        moved = {
            name: (self._value.get(name, 0.0), self._held.get(name, 0.0)) for name in {**self._value, **self._held}
        }
        self._value = {name: held + (was - held) * left for name, (was, held) in moved.items()}
        self._held, self._at = held, now

    @property
    def is_settled(self) -> bool:
        """It stays as it is while the queue holds what it does."""
        return not _differ(self._value, self._held)

    def written(self, before: DecayedUsage) -> DecayedUsage:
        """What the status is to say."""
        # A time to come is that of a leader whose clock was ahead: not waited for.
        if before.at is not None and 0 <= (self._at - before.at).total_seconds() < WRITE_EVERY_S:
            return before
        value = {"gpus": 0.0, "cpu": 0.0, "memory": 0.0, **self._value}
        types = {name: round(gpus, 3) for name, gpus in sorted(value.items()) if name.startswith(_OF_TYPE)}
        now = DecayedUsage(
            gpus=round(value["gpus"], 3),
            cpu=exact_cpu(round(value["cpu"])),
            memory=exact_bytes(round(value["memory"] / 2**20) * 2**20),
            gpu_types={name.removeprefix(_OF_TYPE): gpus for name, gpus in types.items() if gpus},
            at=self._at,
        )
        return now if _differ(_amounts(now), _amounts(before)) else before


def amounts(gpus: float, cpu_milli: float, memory_bytes: float, gpu_types: Mapping[str, float]) -> Amounts:
    return {"gpus": gpus, "cpu": cpu_milli, "memory": memory_bytes} | {
        f"{_OF_TYPE}{name}": count for name, count in gpu_types.items()
    }


def _amounts(written: DecayedUsage) -> Amounts:
    return amounts(*written.amounts, written.gpu_types)


def _differ(one: Amounts, other: Amounts) -> bool:
    pairs = ((one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other})
    return any(abs(a - b) > _MATTERS * max(a, b) for a, b in pairs)
