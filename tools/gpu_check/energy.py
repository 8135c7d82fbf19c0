"""NVML's energy counter: how often it moves, and its joules beside the integral of power, idle and over a load."""

from __future__ import annotations

import itertools
import statistics
import time

import pynvml

from stoker.nvml.calls import CallErrors, DeviceCalls
from stoker.nvml.fields import Fields
from stoker.nvml.load import POWER_FIELDS
from tools.gpu_check.load import busy
from tools.gpu_check.report import Figure

TICKS_S, IDLE_S, LOAD_S, GAP_S = 5.0, 10.0, 20.0, 0.02


def measure() -> dict[str, Figure]:
    """Raises: NVMLError where there is no driver or no counter."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    figures = {**_ticks(handle), **_against_power(handle, "idle", IDLE_S)}
    with busy():
        time.sleep(2)  # clocks and power settle
        return (
            figures
            | {f"under load: {name}": value for name, value in _ticks(handle).items()}
            | _against_power(handle, "under load", LOAD_S)
        )


def _ticks(handle: object) -> dict[str, Figure]:
    """Read as fast as it goes: when it moved, and by how much."""
    moved: list[tuple[float, int]] = []
    ends = time.monotonic() + TICKS_S
    while (now := time.monotonic()) < ends:
        millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        if not moved or millijoules != moved[-1][1]:
            moved.append((now, millijoules))
    gaps = [(b[0] - a[0]) * 1e3 for a, b in itertools.pairwise(moved[1:])]
    steps = [b[1] - a[1] for a, b in itertools.pairwise(moved[1:])]
    return {
        "energy counter's tick: median, ms": statistics.median(gaps) if gaps else None,
        "energy counter's tick: longest, ms": max(gaps, default=None),
        "energy counter's step: median, mJ": statistics.median(steps) if steps else None,
    }


def _against_power(handle: object, when: str, seconds: float) -> dict[str, Figure]:
    """Joules by the counter, and by the trapezoid rule over both of NVML's power readings every 20 ms."""
    fields = Fields(DeviceCalls(handle, CallErrors()), POWER_FIELDS)
    began_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    samples: list[tuple[float, dict[str, float]]] = []
    ends = time.monotonic() + seconds
    while True:
        samples.append((time.monotonic(), fields.read()))
        if samples[-1][0] >= ends:
            break
        time.sleep(GAP_S)
    joules = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - began_mj) / 1e3
    figures: dict[str, Figure] = {f"{when}: joules by the counter": joules}
    for field in POWER_FIELDS:
        held = [(at, values[field.key]) for at, values in samples if field.key in values]
        integral = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(held))
        name = f"{when}: counter ÷ integral of {field.key} (field {field.id})"
        figures[name] = joules / integral if integral else None
    return figures
