"""What 16 bits cost in quality: bf16 and fp16 against fp32, each over the same seeds, on the smallest models.

A format keeps up where the mean of its held-out metric lies within fp32's own spread over the seeds, or beyond it on
the better side. On the CPU: its autocast rounds what a GPU's does, but its products add up in another order, and fp16
is many times slower. So this covers the scaler, the casts and the update, and not speed.

    python -m tools.bench.precision
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch

from stoker.spec.recipes import resolve
from stoker_trainer.config import parse
from stoker_trainer.counter import order
from stoker_trainer.distributed import Place, Ranks, Vote
from stoker_trainer.evaluate import evaluate
from stoker_trainer.step import train_step
from stoker_trainer.training import set_up
from tools.bench.record import record

TINY_TEXT: dict[str, Any] = {"batchSize": 16, "steps": 60, "evalSamples": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "image-classification": ("accuracy", {"model": {"width": 4}, "epochs": 2, "optimizer": {"learningRate": 0.01}}),
    "gpt": ("loss", TINY_TEXT | {"model": {"size": "tiny", "context": 16}, "optimizer": {"learningRate": 0.01}}),
    "bert": ("loss", TINY_TEXT | {"model": {"size": "tiny", "context": 16}, "optimizer": {"learningRate": 0.01}}),
}


def trained(recipe: str, settings: dict[str, Any], precision: str, seed: int) -> tuple[dict[str, float], int]:
    """The metrics at the end, and the steps that were skipped."""
    raw = {
        "recipe": recipe,
        "config": resolve(recipe, {**settings, "seed": seed}),
        "precision": precision,
        "stop": {"maxSteps": None, "target": None, "patience": None},
        "checkpoint": {"everySeconds": 60.0, "keep": 1},
    }
    config, device = parse(json.dumps(raw)), torch.device("cpu")
    t = set_up(config, device, Ranks(Place(), device, deterministic=False))
    batch = config.config.batch_size
    while t.cursor.step < t.total_steps:
        rows = order(seed, t.cursor.epoch, t.data.train_rows, device)[t.cursor.consumed : t.train_rows][:batch]
        train_step(t, rows, Vote())
        t.cursor.step += 1
        t.cursor.consumed += len(rows)
        if t.cursor.consumed >= t.train_rows:
            t.cursor.epoch, t.cursor.consumed = t.cursor.epoch + 1, 0
    return evaluate(t, lambda: None), t.scaler.skipped()


def main() -> int:
    parser = argparse.ArgumentParser(description="bf16 and fp16 against fp32, by the metric at the end.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recipe", choices=CASES, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    behind = 0
    for recipe in options.recipe or CASES:
        metric, settings = CASES[recipe]
        spread = None
        for precision in ("fp32", "bf16", "fp16"):
            began = time.process_time()
            ends = [trained(recipe, settings, precision, seed) for seed in range(1, options.seeds + 1)]
            values = [end[metric] for end, _ in ends]
            mean, low, high = statistics.mean(values), min(values), max(values)
            spread = spread or (low, high)
            keeps_up = mean >= spread[0] if metric == "accuracy" else mean <= spread[1]
            behind += not keeps_up
            record(recipe=recipe, precision=precision, metric=metric, mean=mean, least=low, most=high, seeds=len(ends))
            print(
                f"{recipe}, {precision}: {metric} {mean:.4f} ({low:.4f} to {high:.4f}, {len(ends)} seeds), "
                f"{sum(skipped for _, skipped in ends)} steps skipped, {time.process_time() - began:.1f} CPU-s"
                f"{'' if keeps_up else '; behind fp32'}",
                flush=True,
            )
    return int(behind > 0)


if __name__ == "__main__":
    sys.exit(main())
