"""Tokens to the same held-out loss: the recipe `gpt` with Muon against nanoGPT's optimizer settings, written plainly.

Both train the same network (nanoGPT's without biases, ours) on the bytes of the standard library's sources, in batches
of the same size, over the same seeds. The peer has nanoGPT's settings for a small character model: AdamW with a rate of
1e-3, betas 0.9 and 0.99, decay 0.1 on all matrices, 100 steps of warm-up, a cosine down to a tenth, clipping at 1. Its
held-out loss after `--steps` is what the trainer must reach at the end of a shorter training; of the shares tried the
smallest that does is shown, judged by the means over seeds. Figures of a small model on a CPU; not of a large one.

    python -m tools.bench.solution
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from stoker.spec.recipes import resolve
from stoker_trainer.config import parse
from stoker_trainer.counter import order
from stoker_trainer.distributed import Place, Ranks, Vote
from stoker_trainer.evaluate import evaluate
from stoker_trainer.step import train_step
from stoker_trainer.training import Training, set_up
from tools.bench.record import record

SHARES = (0.2, 0.25, 1 / 3, 0.5)
OURS = {"name": "muon", "learningRate": 0.02, "momentum": 0.95, "schedule": "wsd", "warmup": 0, "cooldown": 0.5}


def training(size: str, seed: int, steps: int) -> Training:
    settings = {
        "model": {"size": size, "context": 64},
        "batchSize": 12,
        "steps": steps,
        "seed": seed,
        "optimizer": OURS,
    }
    raw = {
        "recipe": "gpt",
        "config": resolve("gpt", settings),
        "precision": "fp32",
        "stop": {"maxSteps": None, "target": None, "patience": None},
        "checkpoint": {"everySeconds": 60.0, "keep": 1},
    }
    config, device = parse(json.dumps(raw)), torch.device("cpu")
    return set_up(config, device, Ranks(Place(), device, deterministic=False))


def batches(t: Training, steps: int) -> list[torch.Tensor]:
    rows = order(t.cursor.seed, 0, t.train_rows, t.device)
    return [rows[start * 12 : start * 12 + 12] for start in range(steps)]


def ours(size: str, seed: int, steps: int) -> tuple[float, float]:
    """Held-out loss and CPU seconds."""
    t = training(size, seed, steps)
    began = time.process_time()
    for rows in batches(t, steps):
        train_step(t, rows, Vote())
        t.cursor.step += 1
    return evaluate(t, lambda: None)["loss"], time.process_time() - began


def plain(size: str, seed: int, steps: int) -> tuple[float, float]:
    """The same of nanoGPT's settings."""
    t = training(size, seed, steps)
    net = t.net
    for parameter in net.parameters():
        parameter.grad = None  # the trainer's flat gradient is not used
    matrices = [p for p in net.parameters() if p.ndim >= 2]
    rest = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    update = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    began = time.process_time()
    for step, rows in enumerate(batches(t, steps)):
        batch = t.data.batch(seed, 0, rows)
        scores = net(batch.inputs)
        F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        decayed = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 100) / max(1, steps - 100)))
        for group in update.param_groups:
            group["lr"] = 1e-3 * ((step + 1) / 101 if step < 100 else decayed)
        update.step()
        update.zero_grad()
    return evaluate(t, lambda: None)["loss"], time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=300, help="of the peer, 768 tokens each")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, options.seeds + 1)
    peer = [plain(options.size, seed, options.steps) for seed in seeds]
    wanted = statistics.mean(loss for loss, _ in peer)
    print(f"nanoGPT's settings: {_shown(peer)} after {options.steps * 768:,} tokens", flush=True)
    for share in SHARES:
        steps = round(share * options.steps)
        found = [ours(options.size, seed, steps) for seed in seeds]
        print(f"the trainer:        {_shown(found)} after {steps * 768:,} tokens", flush=True)
        if statistics.mean(loss for loss, _ in found) <= wanted:
            cpu = statistics.mean(s for _, s in found) / statistics.mean(s for _, s in peer)
            record(tokens_ratio=steps / options.steps, cpu_ratio=cpu, loss=wanted)
            print(f"the same loss with {steps / options.steps:.2f} of the tokens and {cpu:.2f} of the CPU time")
            return 0
    print(f"not reached with {SHARES[-1]:.2f} of the tokens")
    return 1


def _shown(found: list[tuple[float, float]]) -> str:
    losses, seconds = zip(*found, strict=True)
    return (
        f"loss {statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f}, {len(losses)} seeds), "
        f"{statistics.mean(seconds):.1f} CPU-s"
    )


if __name__ == "__main__":
    sys.exit(main())
