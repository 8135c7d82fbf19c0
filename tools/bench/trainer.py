"""Samples per second of the trainer against a plain PyTorch loop, in one run on one machine.

Both train the same network on the same images with the same batch, fp32, optimizer, dropout, label smoothing and kind
of augmentation. The plain loop is what a tutorial writes: Dataset, DataLoader, a random affine per sample on the CPU
(torchvision's RandomAffine where it is installed, else the same call chain written out), nn.Dropout, torch.optim.AdamW,
loss.item() each step. It gets the number of loader workers that is fastest here. Rounds alternate; the median counts;
importing, set-up and a warm-up are left out of both, evaluation too. On a busy machine the rounds differ widely: the
load before the run and every round's figures are printed beside the median.

    OMP_NUM_THREADS=1 python -m tools.bench.trainer --data mnist5k
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.spec.recipes import resolve
from stoker_trainer.augment import Scaling
from stoker_trainer.config import parse
from stoker_trainer.counter import order
from stoker_trainer.distributed import Place, Ranks, Vote
from stoker_trainer.recipes.digit_net import DigitNet
from stoker_trainer.step import train_step
from stoker_trainer.training import Training, device_for, prepare_torch, set_up


def torchvision_affine(size: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    try:
        from torchvision.transforms import v2
    except ImportError:
        return None
    return v2.RandomAffine(  # type: ignore[no-any-return]
        10, translate=(1 / size, 1 / size), scale=(0.9, 1.1), interpolation=v2.InterpolationMode.BILINEAR
    )


def written_out_affine(image: torch.Tensor) -> torch.Tensor:
    """Per sample: draw, matrix, grid, sample; what torchvision's functional affine does for a tensor."""
    size = image.shape[-1]
    angle, scale, right, down = (torch.rand(4) * 2 - 1).tolist()
    angle, scale = math.radians(10 * angle), 1 / (1 + 0.1 * scale)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    matrix = torch.tensor([[[cos, -sin, 2 * right / size], [sin, cos, 2 * down / size]]])
    grid = F.affine_grid(matrix, [1, 1, size, size], align_corners=False)
    return F.grid_sample(image[None], grid, align_corners=False)[0]


class Images(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc]
    def __init__(self, images: torch.Tensor, labels: torch.Tensor, scaling: Scaling) -> None:
        self._images, self._labels, self._scaling = images, labels.tolist(), scaling
        self._change = torchvision_affine(images.shape[-1]) or written_out_affine

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image = self._images[row][None].float() / self._scaling.max_value
        return (self._change(image) - self._scaling.mean) / self._scaling.std, self._labels[row]


class Plain(nn.Module):  # type: ignore[misc]
    """The same network with nn.Dropout."""

    def __init__(self, net: DigitNet, dropout: float) -> None:
        super().__init__()
        self.net, self.dropout = net, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net.classify(self.dropout(self.net.convolutions(x).flatten(1)))  # type: ignore[no-any-return]


def plain_round(training: Training, workers: int, steps: int) -> float:
    """Samples per second of the tutorial's loop."""
    recipe, data, device = training.config.config, training.data, training.device
    torch.set_deterministic_debug_mode("default")
    net = DigitNet(recipe.model.width, data.train_images.shape[-1], 10).to(device)
    model = Plain(net, recipe.model.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=recipe.optimizer.weight_decay)
    images = Images(data.train_images.cpu(), data.train_labels.cpu(), data.scaling)
    loader = DataLoader(
        images,
        recipe.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )
    warm, done, samples, begin = 5, 0, 0, 0.0
    while done < steps + warm:
        for x, y in loader:
            if done == warm:
                samples, begin = 0, time.perf_counter()
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=recipe.label_smoothing)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.grad_clip)
            optimizer.step()
            loss.item()
            samples, done = samples + len(x), done + 1
            if done == steps + warm:
                break
    return samples / (time.perf_counter() - begin)


def our_round(training: Training, steps: int) -> float:
    """Samples per second of the trainer's own step, as the loop calls it."""
    batch, rows, position, samples, begin = training.config.config.batch_size, training.train_rows, 0, 0, 0.0
    torch.set_deterministic_debug_mode("error")
    whole = order(1, 0, rows, training.device)
    for done in range(steps + 5):
        if done == 5:
            _wait(training)
            samples, begin = 0, time.perf_counter()
        part = whole[position : position + batch]
        position = (position + batch) % rows if position + batch < rows else 0
        train_step(training, part, Vote())
        samples += len(part)
        if training.device.type == "cpu":
            training.loss.item()
    _wait(training)
    return samples / (time.perf_counter() - begin)


def _wait(training: Training) -> None:
    if training.device.type == "cuda":
        torch.cuda.synchronize()


def machine(device: torch.device) -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((x.split(":")[1].strip() for x in info if x.startswith("model name")), "?")
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} torch thread(s){gpu}; Python "
        f"{platform.python_version()}, torch {torch.__version__}; load before {os.getloadavg()[0]:.1f}"
    )


def make(data: str, precision: str = "fp32") -> Training:
    """A training of one rank on the device that is here."""
    raw: dict[str, Any] = {
        "recipe": "image-classification",
        "config": resolve("image-classification", {"data": data, "epochs": 1000}),
        "precision": precision,
        "stop": {"maxSteps": None, "target": None},
        "checkpoint": {"everySeconds": 60.0, "keep": 2},
    }
    config = parse(json.dumps(raw))
    device = device_for(os.environ, Place())
    prepare_torch(os.environ, config, device)
    return set_up(config, device, Ranks(Place(), device, config.config.deterministic))


def main() -> int:
    parser = argparse.ArgumentParser(description="The trainer's speed against a plain PyTorch loop.")
    parser.add_argument("--data", choices=["digits", "mnist5k"], default="mnist5k")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    training = make(options.data)
    peer = "torchvision" if torchvision_affine(8) else "written-out"
    print(machine(training.device))
    tried = {workers: plain_round(training, workers, options.steps // 3) for workers in (0, 1, 2)}
    workers = max(tried, key=lambda w: tried[w])
    ours, plain = [], []
    for _ in range(options.rounds):
        ours.append(our_round(training, options.steps))
        plain.append(plain_round(training, workers, options.steps))
    a, b = statistics.median(ours), statistics.median(plain)
    print(f"{options.data}, {options.steps} steps of {training.config.config.batch_size}:")
    print(f"  stoker_trainer        {a:9.0f} samples/s  {[round(x) for x in sorted(ours)]}")
    print(f"  plain loop ({workers} workers) {b:9.0f} samples/s  {[round(x) for x in sorted(plain)]}  ({peer} affine)")
    print(f"  ratio {a / b:.2f}  (by round: {[round(x / y, 2) for x, y in zip(ours, plain, strict=True)]})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
