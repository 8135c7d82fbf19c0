"""The time of one AdamW update of 10 million parameters: the trainer's, beside torch's fused one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from stoker_trainer.flat import FlatModel
from stoker_trainer.optim import AdamW
from tools.gpu_check.report import Figure

ROUNDS, A_ROUND = (30, 10) if torch.cuda.is_available() else (7, 3)


def _model(device: torch.device) -> nn.Module:
    """10.0 million parameters in 40 tensors, as a network has them: large matrices and small vectors."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(706, 706) for _ in range(20))).to(device)


def measure() -> dict[str, Figure]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _model(device)
    flat = FlatModel(model)
    flat.gradient.normal_()
    ours, one = AdamW(flat, 0.01), torch.ones((), device=device)
    go = one > 0
    other = _model(device)
    for parameter in other.parameters():
        parameter.grad = torch.randn_like(parameter)
    fused = torch.optim.AdamW(other.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    rounds: dict[str, Callable[[], object]] = {
        "stoker_trainer": lambda: ours.step(1e-3, go, one),
        "torch.optim.AdamW(fused=True)": fused.step,
    }
    for step in rounds.values():
        _round_us(step, device)
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(ROUNDS):
        for name, step in rounds.items():
            times[name].append(_round_us(step, device))
    medians = {name: statistics.median(values) for name, values in times.items()}
    a, b = medians.values()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **{f"{name}, µs (median)": value for name, value in medians.items()},
        "ratio": a / b,
    }


def _round_us(step: Callable[[], object], device: torch.device) -> float:
    """Of one update, the host's launching included: 10 back to back, then one wait. On the CPU its CPU time."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    for _ in range(A_ROUND):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - began) / A_ROUND * 1e6
