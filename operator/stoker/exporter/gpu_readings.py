"""How each GPU is, as the api gets it: what it is, whether it can be read, and what its readings say is wrong. Pure.

Decides nothing: what makes a GPU sick is the api's. What changes all the time (seconds, temperatures) is not in it, so
that it changes when the GPU does. Called by the poll loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from .clock import Moment
from .meters.snapshot import GpuState

WINDOW_S, EVERY_S = 300.0, 10.0
"""Over which hardware throttling is looked at, and how often."""
HELD_DOWN, RELEASED = 0.2, 0.05
"""Of that time: from when on a GPU counts as throttled, and until when."""
_BY_HARDWARE = "throttle_seconds_total|hw_thermal"
"""Not the power brake: that is the rack's, and would take all of its nodes away at once."""
_PROGRAMS = frozenset({13, 31, 43, 45, 68, 69, 109})
"""XIDs of programs' own mistakes, which come in storms and say nothing about a GPU."""
_MOST_XIDS = _MOST_HOLDERS = 64
_XID = "xid_last_timestamp_seconds|"


class GpuReadings:
    def __init__(self) -> None:
        self._held: dict[str, _HeldDown] = {}

    def of(self, gpus: Iterable[GpuState], now: Moment) -> list[dict[str, Any]]:
        """As `spec.reports.ReportedGpu`. GPUs about which nothing is known now are left out, and simulated ones."""
        known = [gpu for gpu in gpus if "up" in gpu.values and gpu.info.get("simulated") != "true"]
        self._held = {gpu.uuid: self._held.get(gpu.uuid, _HeldDown()) for gpu in known}
        return [dict(_facts(gpu, self._held[gpu.uuid].read(gpu, now.mono_s))) for gpu in known]


class _HeldDown:
    """Whether one GPU's hardware has held it down for a good part of the last minutes."""

    def __init__(self) -> None:
        self._read: deque[tuple[float, float]] = deque()
        """(when, seconds held down by then)."""
        self._is = False

    def read(self, gpu: GpuState, mono_s: float) -> bool:
        if self._read and mono_s - self._read[-1][0] < EVERY_S:
            return self._is
        held_s = gpu.values.get(_BY_HARDWARE)
        if held_s is None or (self._read and held_s < self._read[-1][1]):
            self._read.clear()
        if held_s is not None:
            self._read.append((mono_s, held_s))
        while self._read and mono_s - self._read[0][0] > WINDOW_S:
            self._read.popleft()
        share = (self._read[-1][1] - self._read[0][1]) / WINDOW_S if self._read else 0.0
        self._is = share >= (RELEASED if self._is else HELD_DOWN)
        return self._is


def _facts(gpu: GpuState, throttled: bool) -> Iterator[tuple[str, Any]]:
    values = gpu.values
    yield "uuid", gpu.uuid
    yield "index", gpu.index
    yield "lost", not values["up"]
    if model := gpu.info.get("model"):
        yield "model", model[:128]
    if capability := gpu.info.get("compute_capability"):
        yield "computeCapability", capability[:8]
    if (memory := values.get("memory_total_bytes")) is not None:
        yield "memoryBytes", int(memory)
    if (watts := values.get("power_limit_watts|enforced")) is not None and watts >= 1:
        yield "powerLimitWatts", round(watts)
    yield "recoveryAction", int(values.get("recovery_action", 0))
    yield "rowRemapPending", bool(values.get("row_remap_pending") or values.get("retired_pages_pending"))
    yield "rowRemapFailed", bool(values.get("row_remap_failed"))
    yield "throttled", throttled
    if (errors := values.get("ecc_errors_total|uncorrected|volatile")) is not None:
        yield "uncorrectedErrors", int(errors)
    newest = {int(key.removeprefix(_XID)): at for key, at in values.items() if key.startswith(_XID)}
    xids = sorted(((at, code) for code, at in newest.items() if code not in _PROGRAMS), reverse=True)[:_MOST_XIDS]
    yield "xids", [{"code": code, "at": at} for at, code in xids]
    holders = sorted({(share.owner.job_uid, share.owner.attempt) for share in gpu.shares if share.owner.job_uid})
    yield "holders", [{"jobUid": uid, "attempt": attempt} for uid, attempt in holders[:_MOST_HOLDERS]]
