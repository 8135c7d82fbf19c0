"""What a gang that one GPU held back says of that GPU: blame, which the gangs of other jobs share and which decays.

Pure. One job's blame moves that job alone: its own work may have heated the GPU. The GPU is left out for others once
two different jobs have blamed it within `HALF_LIFE`, until so much of that has decayed that one would be left. What
shows that a GPU holds a gang back is `stoker_api.usage.straggler`'s. Called by `gpu_health`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from stoker.spec.gpu_health import MOST_BLAMES, GpuBlame

HALF_LIFE = timedelta(days=1)
LEFT_OUT, BACK = 1.5, 1.0
"""Blame from which on a GPU is left out: two jobs' within a half-life; and under which it is back."""
_FORGOTTEN = 0.125


def is_straggler(blames: Iterable[GpuBlame], now: datetime, *, was: bool) -> bool:
    """Whether a GPU is left out. `was`: it is already."""
    return sum(_left(one, now) for one in blames) >= (BACK if was else LEFT_OUT)


def kept(blames: Iterable[GpuBlame], now: datetime, cleared_at: datetime | None) -> tuple[GpuBlame, ...]:
    """Those that still say anything and that no administrator has cleared, the newest."""
    counting = [one for one in blames if _left(one, now) > _FORGOTTEN and (cleared_at is None or one.at > cleared_at)]
    newest = sorted(counting, key=lambda one: one.at)[-MOST_BLAMES:]
    return tuple(sorted(newest, key=lambda one: one.job_uid))


def _left(one: GpuBlame, now: datetime) -> float:
    """Of a job's blame: 1, half of that a half-life later."""
    return float(min(1.0, 0.5 ** ((now - one.at) / HALF_LIFE)))
