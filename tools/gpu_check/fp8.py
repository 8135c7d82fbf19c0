"""What 8-bit products bring: tokens a second of GPT-2 by size in bf16 and fp8, blocks compiled, in one run.

Without a GPU it times the smallest model on the CPU, where 8 bits are no faster: that only runs the code.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from stoker.spec.recipes import resolve
from stoker_trainer import fp8
from stoker_trainer.counter import order
from stoker_trainer.distributed import Vote
from stoker_trainer.step import train_step
from tools.bench import trainer
from tools.gpu_check.report import Figure

ON_GPU = torch.cuda.is_available()
BATCHES = {"124m": 64, "774m": 16} if ON_GPU else {"tiny": 4}
"""Size → samples."""
CONTEXT = 1024 if ON_GPU else 32
STEPS, WARM_UP = (15, 5) if ON_GPU else (2, 1)


def measure() -> dict[str, Figure]:
    if not ON_GPU:
        fp8.check = lambda device: None
    elif torch.cuda.get_device_capability() < fp8.CAPABILITY:
        return {"fp8: tokens/s": None}
    figures: dict[str, Figure] = {}
    for size in BATCHES:
        rates = {precision: _tokens_a_second(size, precision) for precision in ("bf16", "fp8")}
        figures |= {f"{size}, {precision}: tokens/s": rate for precision, rate in rates.items()}
        figures[f"{size}: fp8 to bf16"] = rates["fp8"] / rates["bf16"]
    return figures


def _tokens_a_second(size: str, precision: str) -> float:
    settings: dict[str, Any] = {"model": {"size": size, "context": CONTEXT}, "batchSize": BATCHES[size]}
    settings["compile"] = "blocks" if ON_GPU else "off"
    training = trainer.made("gpt", resolve("gpt", settings), precision)
    rows = order(1, 0, training.train_rows, training.device)[: BATCHES[size]]
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            _wait()
            began = time.perf_counter()
        train_step(training, rows, Vote())
    _wait()
    return STEPS * BATCHES[size] * CONTEXT / (time.perf_counter() - began)


def _wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()
