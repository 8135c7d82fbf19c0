"""The exporter's own reading of the first GPU over real NVML: every call, its latency, its refusals; GPM without root.

Calls are timed where nvidia-ml-py looks up the library's functions, so that each is counted by its C name, those of
field values and samples too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pynvml

from stoker.nvml.calls import CallErrors, code_name
from stoker.nvml.frames import COLLECTORS
from stoker.nvml.session import NvmlSession
from tools.gpu_check.report import Figure

POLLS, GAP_S = 30, 1.0
"""As the exporter's."""
ROOT, NOT_ROOT = "root", "uid 65534"

_Seen = dict[str, list[tuple[float, int]]]
"""C name → (µs, return code) of each call."""


def measure() -> dict[str, Figure]:
    """Raises: DriverLost where there is no driver."""
    seen: _Seen = defaultdict(list)
    found: Callable[[str], Any] = pynvml._nvmlGetFunctionPointer
    pynvml._nvmlGetFunctionPointer = lambda name: _timed(found(name), name, seen)
    try:
        polls_us, cpu_us, values = _polls()
    finally:
        pynvml._nvmlGetFunctionPointer = found
    by_call = sorted(((sum(us for us, _ in calls) / POLLS, name) for name, calls in seen.items()), reverse=True)
    dearest = [f"{name} {us:,.0f}" for us, name in by_call if not name.startswith("nvmlEvent")]
    figures: dict[str, Figure] = {
        "polls": POLLS,
        "a poll: CPU, µs": cpu_us,
        "a poll: its dearest calls, µs": ", ".join(dearest[:6]),
        "a poll: p50, µs": _quantile(polls_us, 0.5),
        "a poll: p99, µs": _quantile(polls_us, 0.99),
        "values of a poll": len(values),
    }
    for name in sorted(seen):
        times = [us for us, _ in seen[name]]
        figures[f"{name}: p50, µs"] = _quantile(times, 0.5)
        figures[f"{name}: p99, µs"] = _quantile(times, 0.99)
        if refused := sorted({code_name(code) for _, code in seen[name] if code}):
            figures[f"{name}: refused"] = ", ".join(refused)
    figures |= {f"as {user}: {name}": value for user in (ROOT, NOT_ROOT) for name, value in _gpm_as(user).items()}
    return figures


def _timed(function: Any, name: str, seen: _Seen) -> Any:
    if name in ("nvmlErrorString", "nvmlInitWithFlags", "nvmlShutdown"):
        return function

    def call(*args: Any) -> Any:
        began = time.perf_counter_ns()
        code = function(*args)
        seen[name].append(((time.perf_counter_ns() - began) / 1e3, code))
        return code

    return call


def _session() -> NvmlSession:
    unix_us = int(time.time() * 1e6)
    return NvmlSession(CallErrors(), frozenset(COLLECTORS), lambda _: None, seen_us=unix_us, all_pids=os.geteuid() == 0)


def _polls() -> tuple[list[float], float, dict[str, float]]:
    """µs of each, the mean of their CPU time, the values of the last."""
    session = _session()
    times, values = [], {}
    before_ns = time.thread_time_ns()
    for _ in range(POLLS):
        began = time.perf_counter()
        values = session.devices[0].read(time.monotonic, time.monotonic()).values
        times.append((time.perf_counter() - began) * 1e6)
        time.sleep(GAP_S)
    cpu_us = (time.thread_time_ns() - before_ns) / 1e3 / POLLS
    while not session.stop():
        time.sleep(0.1)
    session.close()
    return times, cpu_us, values


def _quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _gpm_as(user: str) -> dict[str, Figure]:
    """What a process of this user reads by GPM. Rights are dropped after all is imported, before NVML is opened."""
    code = "from tools.gpu_check.nvml import gpm; gpm(__import__('sys').argv[1])"
    done = subprocess.run([sys.executable, "-c", code, user], capture_output=True, text=True, timeout=20)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    figures: dict[str, Figure] = json.loads(done.stdout)
    return figures


def gpm(user: str) -> None:
    """Prints, as JSON, how many values come, GPM's among them, as this user."""
    if user == NOT_ROOT:
        uid = int(user.removeprefix("uid "))
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    session = _session()
    session.devices[0].read(time.monotonic, time.monotonic())
    time.sleep(0.5)
    values = session.devices[0].read(time.monotonic, time.monotonic()).values
    try:
        support: int | str = pynvml.nvmlGpmQueryDeviceSupport(session.devices[0].handle).isSupportedDevice
    except pynvml.NVMLError as error:
        support = str(error)
    names = [name for name in values if name.endswith("_active_ratio") or name.startswith(("sm_", "pipe_"))]
    print(json.dumps({"GPM is supported": support, "GPM values": len(names), "values": len(values)}))
