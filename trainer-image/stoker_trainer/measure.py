"""Owns what a training measures of itself: time by phase, the arithmetic it gets out of the device, memory, energy, and
the verdict on what bounds its speed. Fed by the step, read by the report; no measure makes the host wait between two
reports.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from .recipe import Batch, Recipe, Source

PHASES = ("data", "forward_backward", "reduce", "update")
_MOST_EVENTS = 4096  # between two reports; the steps beyond are not timed
_HALF, _LARGE = 0.5, 0.2


class Clock:
    """Where the time of steps goes: on CUDA the device's time, by events, else the host's."""

    def __init__(self, device: torch.device, host: Callable[[], float] = time.perf_counter) -> None:
        self._host = host
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps, self.idle = 0, 0
        """Steps, and those at whose start the device had nothing left to do (CUDA only)."""
        self._cuda = device.type == "cuda"
        self._at = 0.0
        self._events: list[tuple[str, Any]] = []

    def start(self) -> None:
        """A step begins."""
        self.steps += 1
        if self._cuda and self._events:
            self.idle += self._events[-1][1].query()
        self._mark("")

    def lap(self, phase: str) -> None:
        """The time since the last call was spent on `phase`."""
        self._mark(phase)

    def read(self) -> dict[str, float]:
        """Seconds by phase so far. Cost: waits for the device's newest event."""
        if self._events:
            self._events[-1][1].synchronize()
            for (_, began), (phase, ended) in zip(self._events, self._events[1:], strict=False):
                if phase:
                    self.seconds[phase] += began.elapsed_time(ended) / 1000
            del self._events[:-1]
        return dict(self.seconds)

    def _mark(self, phase: str) -> None:
        if self._cuda:
            if phase or len(self._events) < _MOST_EVENTS:
                event: Any = torch.cuda.Event(enable_timing=True)
                event.record()
                self._events.append((phase, event))
            return
        now = self._host()
        if phase:
            self.seconds[phase] += now - self._at
        self._at = now


class Verdict(NamedTuple):
    bound: str
    """input, communication, launch or compute."""
    because: str
    """The figure behind it."""


def verdict(phases: Mapping[str, float], idle: float | None, of_product: float | None) -> Verdict | None:
    """What bounds the speed. `idle`: the share of steps before which the device had run dry, where that is known;
    `of_product`: arithmetic done, as a share of what the device does in a large matrix product.
    """
    total = sum(phases.values())
    if total <= 0:
        return None
    share = {name: seconds / total for name, seconds in phases.items()}
    waits = {"input": (share["data"], "making the batch"), "communication": (share["reduce"], "adding up gradients")}
    bound, (most, doing) = max(waits.items(), key=lambda item: item[1][0])
    if most >= _LARGE:
        return Verdict(bound, f"{most:.0%} of a step is {doing}")
    if idle is not None and idle >= _HALF:
        return Verdict("launch", f"before {idle:.0%} of the steps the GPU had run out of work")
    rate = "" if of_product is None else f", at {of_product:.0%} of a large matrix product's speed"
    return Verdict("compute", f"{share['forward_backward']:.0%} of a step is forward and backward{rate}")


# -- arithmetic

_DENSE_TFLOPS = {  # datasheets: 16 bits, TF32, fp32, without sparsity
    "H200": (989, 495, 67),
    "H100 PCIe": (756, 378, 51),
    "H100": (989, 495, 67),
    "A100": (312, 156, 19.5),
    "L40S": (362, 183, 91.6),
    "L4": (121, 60, 30),
    "A10": (125, 62.5, 31.2),
}


def datasheet_flops(gpu: str, precision: str) -> float | None:
    """The peak of a GPU by its name, in operations a second (of fp8: that of 16 bits); None where it is not known."""
    column = {"tf32": 1, "fp32": 2}.get(precision, 0)
    parts = gpu.replace("-", " ").split()
    for name, peaks in _DENSE_TFLOPS.items():
        if all(part in parts for part in name.split()):
            return peaks[column] * 1e12
    return None


def product_flops(precision: str, device: torch.device) -> float:
    """What the device does in a matrix product (large, on CUDA), in operations a second. Cost: some 10 ms."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}.get(precision, torch.float32)
    cuda = device.type == "cuda"
    size = 8192 if cuda and precision != "fp32" else 4096 if cuda else 256 if dtype == torch.float32 else 64
    numbers = torch.Generator(device).manual_seed(1)  # not the training's; zeros would need less power
    factor = torch.randn(size, size, device=device, generator=numbers).to(dtype)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        factor @ factor
        if cuda:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


class _Products(TorchFunctionMode):  # type: ignore[misc]
    """Counts the operations of products: linear layers, convolutions, attention, recurrent cells.

    Not torch's FlopCounterMode: importing it imports torch's compiler (4 s).
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: int = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name in ("linear", "matmul", "mm", "__matmul__"):
            self.operations += 2 * out.numel() * args[0].shape[-1]
        elif name in ("conv1d", "conv2d", "conv3d"):
            self.operations += 2 * out.numel() * args[1][0].numel()
        elif name == "scaled_dot_product_attention":
            self.operations += 4 * args[0].numel() * args[1].shape[-2]
        elif name == "lstm":
            weights = [w for w in args[2] if w.dim() == 2] if isinstance(args[2], list | tuple) else []
            self.operations += 2 * args[0].shape[:-1].numel() * sum(w.numel() for w in weights)
        return out


def flops_of_sample(recipe: Recipe, source: Source, device: torch.device, on: str | None = None) -> int:
    """Operations of products for one sample forward and backward, which is twice as much.

    The source is on `device`, the recipe there too or on the device `on` (meta).
    """
    batch = source.test_batch(torch.zeros(1, dtype=torch.int64, device=device))
    recipe.net.eval()
    with torch.no_grad(), _Products() as counted:
        recipe.score(moved(batch, on) if on else batch)
    recipe.net.train()
    operations: int = 3 * counted.operations
    return operations


def moved(batch: Batch, device: str) -> Batch:
    """The same batch on another device."""
    inputs, targets, samples_B = (x.to(device) for x in (batch.inputs, batch.targets, batch.samples_B))
    return replace(batch, inputs=inputs, targets=targets, samples_B=samples_B)


# -- memory and energy


def memory_peak(device: torch.device) -> int:
    """Bytes: most allocated on the GPU so far; on the CPU the process's largest resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Energy:
    """The GPU's own counter, by NVML through the package nvidia-ml-py."""

    def __init__(self, device: torch.device) -> None:
        self._read: Callable[[], float] | None = None
        self._last = 0.0
        if device.type == "cuda":
            with suppress(Exception):  # no package, no library, a slice of a GPU: then there is no energy
                import pynvml

                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
                self._last = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
                self._read = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000

    def joules(self) -> float:
        """Used since the last call; not a number where that is not known."""
        if self._read is None:
            return float("nan")
        try:
            now = self._read()
        except Exception:  # noqa: BLE001  (a GPU that is lost says so elsewhere)
            self._read = None
            return float("nan")
        used, self._last = now - self._last, now
        return used
