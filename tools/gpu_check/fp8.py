"""What 8-bit products bring: tokens a second of GPT-2 124M in bf16 and fp8, blocks compiled, in one run.

Without a GPU it times the smallest model on the CPU, where 8 bits are no faster: that only runs the code.
"""

from __future__ import annotations

import time

import torch

from stoker.spec.recipes import resolve
from stoker_trainer import fp8
from stoker_trainer.counter import order
from stoker_trainer.distributed import Vote
from stoker_trainer.step import train_step
from tools.bench import trainer
from tools.gpu_check.report import Figure

ON_GPU = torch.cuda.is_available()
MODEL = {"size": "124m", "context": 1024} if ON_GPU else {"size": "tiny", "context": 32}
BATCH, STEPS, WARM_UP = (64, 20, 5) if ON_GPU else (4, 2, 1)


def measure() -> dict[str, Figure]:
    if not ON_GPU:
        fp8.check = lambda device: None
    elif torch.cuda.get_device_capability() < fp8.CAPABILITY:
        return {"fp8: tokens/s": None}
    rates = {precision: _tokens_a_second(precision) for precision in ("bf16", "fp8")}
    figures: dict[str, Figure] = {f"{precision}: tokens/s": rate for precision, rate in rates.items()}
    return figures | {"fp8 to bf16": rates["fp8"] / rates["bf16"]}


def _tokens_a_second(precision: str) -> float:
    settings = {"model": MODEL, "batchSize": BATCH, "compile": "blocks" if ON_GPU else "off"}
    training = trainer.made("gpt", resolve("gpt", settings), precision)
    rows = order(1, 0, training.train_rows, training.device)[:BATCH]
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            _wait()
            began = time.perf_counter()
        train_step(training, rows, Vote())
    _wait()
    return STEPS * BATCH * MODEL["context"] / (time.perf_counter() - began)  # type: ignore[operator]


def _wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()
