"""`batch: auto` against a full grid: how near the micro-batch that it finds is to the best, and what finding it costs.

The grid tries every number of equal passes over the batch, twice, and keeps the faster. Both sides run in fresh
processes under the same limit of memory, RLIMIT_DATA, in which the largest micro-batches do not fit. On the CPU a step
counts by its CPU time. The run is the training that was asked for, all of its steps at the speed of what was found.

    python -m tools.bench.batch
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from stoker.spec.recipes import resolve
from stoker_trainer.config import parse
from stoker_trainer.distributed import Place, Ranks
from stoker_trainer.trials import Server
from stoker_trainer.tune import micro_batch
from tools.bench.record import record

CPU = torch.device("cpu")
CASES = (
    ("gpt", {"model": {"size": "tiny", "context": 128}, "batchSize": 128, "steps": 4000}),
    ("bert", {"model": {"size": "tiny", "context": 128}, "batchSize": 96, "steps": 4000}),
    ("image-classification", {"data": "mnist5k", "batchSize": 512, "epochs": 400}),
)


@dataclass(frozen=True)
class Compared:
    found: int
    best: int
    """Of the grid. Both are samples at a time."""
    ratio: float
    """The step with what was found, by the step of the grid's best."""
    search_s: float
    share: float
    """What the search took of the whole training's time."""


def compare(
    recipe: str,
    settings: dict[str, object],
    limit_bytes: int | None,
    device: torch.device = CPU,
    passes: Iterable[int] | None = None,
) -> Compared:
    """`limit_bytes`: memory of a process on the CPU. `passes`: what the grid tries; None: every number."""
    text = json.dumps(
        {
            "recipe": recipe,
            "config": resolve(recipe, {**settings, "batch": "auto"}),
            "precision": "auto",
            "stop": {"maxSteps": None, "target": None, "patience": None},
            "checkpoint": {"everySeconds": 60.0, "keep": 1},
        }
    )
    config = parse(text)
    batch = config.config.batch_size
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, before[1]))
    search_s = _spent(device)
    found = micro_batch(config, text, os.environ, device, Ranks(Place(), device, False), None, lambda: None).micro_batch
    search_s = _spent(device) - search_s
    assert found is not None
    grid: dict[int, float] = {}
    steps = 0
    sizes = {math.ceil(batch / n) for n in passes or range(1, batch + 1)} - {1} | {found}
    with Server(text, os.environ) as server:
        for micro in sorted(sizes, reverse=True) * 2:
            speed = server.run(micro)
            if speed is not None:
                seconds = math.ceil(batch / micro) * speed.of_pass + speed.of_update
                grid[micro], steps = min(seconds, grid.get(micro, math.inf)), speed.total_steps
    resource.setrlimit(resource.RLIMIT_DATA, before)
    best = min(grid, key=lambda micro: grid[micro])
    ratio, share = grid[found] / grid[best], search_s / (grid[found] * steps)
    record(recipe=recipe, batch=batch, found=found, best=best, step_ratio=ratio, search_share=share)
    print(
        f"{recipe}, batch {batch}: {found} at a time, {ratio:.3f} of the step of the grid's best "
        f"({best}, of {len(grid)} that fit, the largest {max(grid)}; the whole batch "
        f"{_by(grid.get(batch), grid[best])}); {search_s:.1f} s, {share:.1%} of {steps:,} steps",
        flush=True,
    )
    return Compared(found, best, ratio, search_s, share)


def _spent(device: torch.device) -> float:
    """Seconds: of the CPU by children that have ended, where steps are counted so; else of the clock."""
    return sum(os.times()[2:4]) if device.type == "cpu" else time.monotonic()


def _by(seconds: float | None, best: float) -> str:
    return "does not fit" if seconds is None else f"{seconds / best:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="batch: auto against a full grid.")
    parser.add_argument("--limit-mb", type=int, default=900, help="memory of a process, as RLIMIT_DATA counts it")
    options = parser.parse_args()
    for recipe, settings in CASES:
        compared = compare(recipe, settings, options.limit_mb << 20)
        if compared.ratio > 1.05 or compared.share > 0.02:
            print(f"  {recipe} misses the goal, a step of 1.05 and 2 % of the run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
