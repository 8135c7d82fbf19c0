"""What one step of the trainer asks of the GPU, by precision, one by one and recorded as a CUDA graph: kernels, copies,
waits of the host, time.

The step is the trainer's own (`stoker_trainer.step.train_step`) on the digits of examples/digits.yaml, one rank.
Without a GPU the same loop counts torch's operations on the CPU.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from stoker.spec.recipes import resolve
from stoker_trainer.counter import order
from stoker_trainer.distributed import Vote
from stoker_trainer.step import train_step
from stoker_trainer.training import Training
from tools.bench import trainer
from tools.gpu_check.report import Figure

STEPS, WARM_UP = (50, 20) if torch.cuda.is_available() else (3, 1)
_STARTS = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def measure() -> dict[str, Figure]:
    warnings.simplefilter("ignore")
    figures: dict[str, Figure] = {}
    for precision in ("bf16", "fp16", "tf32", "fp32") if torch.cuda.is_available() else ("fp32",):
        for way, label in (("off", precision), ("step", f"{precision}, recorded")):
            settings = {"data": "digits", "epochs": 1000, "cudaGraph": way}
            training = trainer.made("image-classification", resolve("image-classification", settings), precision)
            assert training.graph is not None or way == "off" or training.device.type == "cpu"
            figures |= {f"{label}: {name}": value for name, value in _of(training).items()}
            assert training.graph is None or training.graph.recorded
    return figures


def _of(training: Training) -> dict[str, Figure]:
    on_gpu = training.device.type == "cuda"
    rows = order(1, 0, training.train_rows, training.device)[: training.config.config.batch_size]
    _run(training, rows, WARM_UP)
    began = time.perf_counter()
    _run(training, rows, STEPS)
    step_s = (time.perf_counter() - began) / STEPS
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiled:
        for _ in range(STEPS):
            train_step(training, rows, Vote())
    events: Any = profiled.events() or []
    counts = Counter("operations" if event.name.startswith("aten::") else event.name for event in events)
    figures: dict[str, Figure] = {
        "step, µs": step_s * 1e6,
        "samples/s": len(rows) / step_s,
        "torch operations a step (nested ones too)": counts["operations"] / STEPS,
    }
    if not on_gpu:
        return figures
    gpu = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    copies = [event for event in gpu if event.name.startswith(("Memcpy", "Memset"))]
    kernels = len(gpu) - len(copies)
    busy_us = sum(event.time_range.elapsed_us() for event in gpu)
    return figures | {
        "kernels a step": kernels / STEPS,
        "starts by the host a step (kernels and graphs)": sum(counts[name] for name in _STARTS) / STEPS,
        "copies and memsets a step": len(copies) / STEPS,
        "copies from the GPU a step": sum("DtoH" in event.name for event in copies) / STEPS,
        "waits of the host a step (CUDA's own calls)": sum(counts[name] for name in _WAITS) / STEPS,
        "waits of the host a step (torch's sync debug mode)": _synchronising(training, rows) / STEPS,
        "GPU busy share of the step": busy_us / STEPS / (step_s * 1e6),
    }


def _run(training: Training, rows: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        train_step(training, rows, Vote())
    if training.device.type == "cuda":
        torch.cuda.synchronize()


def _synchronising(training: Training, rows: torch.Tensor) -> int:
    """How often torch warned of an operation that makes the host wait."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(STEPS):
                train_step(training, rows, Vote())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
