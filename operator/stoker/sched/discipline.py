"""A queue's discipline: in which order its jobs run, and by which of them others are stopped.

Owns the classes of `las` (least attained service). GPU-seconds had so far fall into classes that grow geometrically,
and a job of each class stands back behind those that are queued up to so much later (`STANDS_BACK_S`): the more it has
had, the longer it lets others pass, but not for ever. What a job has had is known, how long it will run is not: most
jobs are short, and those that turn out long make way.
Source: Tiresias (Gu et al., NSDI 2019), discretized two-dimensional LAS; ours lets a job of any class pass in time by
its place in the order, where Tiresias promotes those that starve.
Pure. Called by `entries` (order) and `preempt`.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta

import numpy as np

_HOUR_S = 3600.0
BOUNDS_S = (4 * _HOUR_S, 8 * _HOUR_S, 16 * _HOUR_S)
"""GPU-seconds from which on a job is in the second class, the third, …"""
STANDS_BACK_S = np.array([0.0, 38.0, 46.0, 53.0]) * _HOUR_S
"""By class."""
LOSS = 0.04
"""A job is stopped by this only while that loses at most so much of what its attempt has had: soon after a checkpoint.
So what a queue's GPUs lose by it is bounded, whatever the jobs are like."""
BOUNDS_OR_NEVER = np.array([-np.inf, *BOUNDS_S, np.inf])
"""Of each class, and of one beyond the last."""


def place_in_time(queued_at: datetime, attained_gpu_s: float) -> datetime:
    """Its place among the jobs of its priority."""
    return queued_at + timedelta(seconds=float(STANDS_BACK_S[bisect_right(BOUNDS_S, attained_gpu_s)]))
