"""The trainer's speed against the plainest good loop: wall time and CPU time, as ratios within one run.

The peer is what a careful engineer writes: data on the device, batches by indexing, augmentation of a whole batch at
once, nn.Dropout, `torch.optim.AdamW(fused=True)`, clipping, DistributedDataParallel (static_graph, gradients as views
of its buckets). Network, batch, fp32 and hyper-parameters are the same. Rounds alternate, and the ratio is the median
of the rounds' own ratios (over 1: the trainer is faster); importing, set-up, warm-up and evaluation are left out. On a
busy machine wall times differ widely; CPU time does less. Ranks: processes of one thread each, over gloo.

    make bench-trainer
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.spec.recipes import RecipeConfig, resolve
from stoker_trainer import recipes
from stoker_trainer.config import parse
from stoker_trainer.counter import Epoch, order
from stoker_trainer.distributed import Place, Ranks, Vote
from stoker_trainer.recipe import Batch, Export, Source
from stoker_trainer.recipes.digit_net import DigitNet
from stoker_trainer.recipes.image_source import ImageSource
from stoker_trainer.recipes.images import Images
from stoker_trainer.recipes.seq2seq_net import BEGIN, real
from stoker_trainer.settings import ByEpochs
from stoker_trainer.step import share, train_step
from stoker_trainer.training import Training, device_for, prepare_torch, set_up
from tools.bench.record import record
from tools.gpu_check import update

WARM_UP = 3


# -- a multi-layer perceptron of 10 million parameters


@dataclass(frozen=True)
class Points:
    x: torch.Tensor
    y: torch.Tensor
    train_rows, test_rows, words = 4096, 0, "random points"
    facts = MappingProxyType({})

    def batch(self, seed: int, epoch: Epoch, samples_B: torch.Tensor) -> Batch:
        return Batch(self.x[samples_B], self.y[samples_B], samples_B, seed, epoch)

    def test_batch(self, samples_B: torch.Tensor) -> Batch:
        return self.batch(0, 0, samples_B)


def load(settings: ByEpochs, device: torch.device) -> Points:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(4096, 784, generator=generator), torch.randint(10, (4096,), generator=generator)
    return Points(x.to(device), y.to(device))


class Recipe:
    units, blocks = 1, ()
    groups = MappingProxyType({})
    metrics = MappingProxyType({"loss": "min"})

    def __init__(self, settings: ByEpochs, source: Points) -> None:
        widths = (784, 2048, 2048, 2048)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(2048, 10))

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        return F.cross_entropy(self.net(batch.inputs), batch.targets, reduction="sum"), len(batch.targets)

    def score(self, batch: Batch) -> tuple[torch.Tensor, int]:
        loss, count = self.loss(batch)
        return loss[None], count

    def export(self) -> Export:
        raise NotImplementedError


recipes.RECIPES["mlp"] = recipes.Entry(ByEpochs, __name__)


# -- the peer


class Dropped(nn.Module):  # type: ignore[misc]
    """The trainer's network with nn.Dropout."""

    def __init__(self, net: DigitNet, dropout: float) -> None:
        super().__init__()
        self.net, self.dropout = net, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net.classify(self.dropout(self.net.convolutions(x).flatten(1)))  # type: ignore[no-any-return]


def changed(images_BHW: torch.Tensor, source: Images) -> torch.Tensor:
    """A random rotation, scale and shift of each image of a batch. Shape: [B, 1, H, W]."""
    count, size, device = len(images_BHW), images_BHW.shape[-1], images_BHW.device
    angle, scale, right, down = torch.rand(4, count, device=device) * 2 - 1
    angle, scale = math.radians(10) * angle, 1 + 0.1 * scale
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = [torch.stack([cos, -sin, 2 * right / size], 1), torch.stack([sin, cos, 2 * down / size], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), [count, 1, size, size], align_corners=False)
    x = F.grid_sample(images_BHW[:, None].float() / source.scaling.max_value, grid, align_corners=False)
    return (x - source.scaling.mean) / source.scaling.std


class Restored(nn.Module):  # type: ignore[misc]
    """Scores of the hidden tokens alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.net.restore(*x)  # type: ignore[no-any-return]


class Predicted(nn.Module):  # type: ignore[misc]
    """Scores of each next target token."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.net(*x)  # type: ignore[no-any-return]


def pairs_of(source: Any, rows: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Sources, targets shifted by one, and what to predict; -100, which torch leaves out, after the end."""
    batch = source.batch(1, 0, rows)
    begin = torch.full_like(batch.targets[:, :1], BEGIN)
    wanted = torch.where(real(batch.targets), batch.targets, -100)
    return (batch.inputs, torch.cat([begin, batch.targets[:, :-1]], 1)), wanted


def hidden(source: Any, count: int, rows: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Some tokens of each sample hidden, as BERT's paper does: 80 % masked, 10 % another, 10 % their own."""
    tokens = source.batch(1, 0, rows).inputs
    at = torch.rand(tokens.shape, device=tokens.device).topk(count, dim=1).indices
    own, how = tokens.gather(1, at), torch.rand(at.shape, device=tokens.device)
    other = torch.randint(source.vocabulary, at.shape, device=tokens.device)
    shown = torch.where(how < 0.8, source.vocabulary, torch.where(how < 0.9, other, own))
    return (tokens.scatter(1, at, shown), at), own


class Plain:
    """The plain loop of one training, on as many ranks."""

    def __init__(self, training: Training) -> None:
        self._training, settings = training, training.config.config
        source, device = training.data, training.device
        model: nn.Module
        if isinstance(source, Images):
            model = Dropped(DigitNet(settings.model.width, source.train_images.shape[-1], 10), settings.model.dropout)
            self._batch: Callable[[torch.Tensor], Any] = lambda rows: (
                changed(source.train_images[rows], source),
                source.train_labels[rows],
            )
            self._smoothing = settings.label_smoothing
        else:
            module = importlib.import_module(recipes.RECIPES[training.config.recipe].module)
            recipe = module.Recipe(settings, source)
            model, self._smoothing = recipe.net, getattr(settings, "label_smoothing", 0.0)
            self._batch = partial(shifted if isinstance(source, ImageSource) else _inputs_and_targets, source)
            if training.config.recipe == "bert":
                model, self._batch = Restored(model), partial(hidden, source, recipe.units)
            elif training.config.recipe == "seq2seq":
                model, self._batch = Predicted(model), partial(pairs_of, source)
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        self._model = model.to(device, memory_format=layout)
        if training.ranks.world > 1:
            self._model = DistributedDataParallel(self._model, static_graph=True, gradient_as_bucket_view=True)
        decay, parameters = settings.optimizer.weight_decay, self._model.parameters()
        if settings.optimizer.name == "sgd":
            self._update: torch.optim.Optimizer = torch.optim.SGD(
                parameters, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=decay, fused=True
            )
        else:
            self._update = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=decay, fused=True)

    def step(self, rows: torch.Tensor) -> None:
        ranks = self._training.ranks
        x, y = self._batch(rows[share(ranks.rank, ranks.world, len(rows))])
        F.cross_entropy(self._model(x).flatten(0, -2), y.flatten(), label_smoothing=self._smoothing).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._update.step()
        self._update.zero_grad()


def shifted(source: ImageSource, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A random crop of each padded image of a batch. Shape: [B, C, H, W]."""
    assert isinstance(source.images, torch.Tensor)
    rows, pad, device = source.train[samples], source.rule.pad, samples.device
    padded = F.pad(source.images[rows], (0, 0, pad, pad, pad, pad))
    down, right = torch.randint(2 * pad + 1, (2, len(rows), 1, 1), device=device)
    height, width = (torch.arange(side, device=device) for side in source.images.shape[1:3])
    x = padded[torch.arange(len(rows), device=device)[:, None, None], height[:, None] + down, width + right]
    x = ((x.float() - source.mean_C) * source.scale_C).permute(0, 3, 1, 2)
    return x if x.is_cuda else x.contiguous(), source.labels[rows]


def _inputs_and_targets(source: Source, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch = source.batch(1, 0, rows)
    return batch.inputs, batch.targets


# -- rounds


def ratios(training: Training, rounds: int, steps: int, ways: dict[str, Callable[[torch.Tensor], None]]) -> list[str]:
    """Of each way against the last one: a line with the medians of the rounds' ratios, and samples/s."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, step in ways.items():
            wall, cpu = _round(training, step, steps if number else WARM_UP)
            if number:
                seconds[name].append((wall, cpu))
    *ours, peer = ways
    samples = steps * training.config.config.batch_size
    lines = []
    for name in ours:
        pairs = list(zip(seconds[name], seconds[peer], strict=True))
        wall, cpu = ([theirs[i] / mine[i] for mine, theirs in pairs] for i in (0, 1))
        speed = [samples / statistics.median(x[0] for x in seconds[way]) for way in (name, peer)]
        record(
            what=name,
            wall_ratio=statistics.median(wall),
            wall_ratios=[min(wall), max(wall)],
            cpu_ratio=statistics.median(cpu),
            cpu_ratios=[min(cpu), max(cpu)],
        )
        lines.append(
            f"  {name:40} wall {statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f})"
            f"  CPU {statistics.median(cpu):.2f} ({min(cpu):.2f} to {max(cpu):.2f})"
            f"  {speed[0]:,.0f} and {speed[1]:,.0f} samples/s"
        )
    return lines


def _round(training: Training, step: Callable[[torch.Tensor], None], steps: int) -> tuple[float, float]:
    """Wall and CPU seconds, the latter of all ranks."""
    batch, ranks, count = training.config.config.batch_size, training.ranks, training.train_rows
    whole = order(1, 0, count, training.device)
    if ranks.world > 1:
        dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(steps):
        start = number * batch % (count - batch + 1)
        step(whole[start : start + batch])
    if training.device.type == "cuda":
        torch.cuda.synchronize()
    spent = [time.process_time() - cpu]
    return time.perf_counter() - wall, ranks.sum_numbers(spent)[0]


def make(data: str, precision: str = "fp32", ranks: Ranks | None = None, batch: int | None = None) -> Training:
    """A training on the device that is here; `data` is an image data set, "mlp", or another recipe."""
    recipe = data if data in recipes.RECIPES else "image-classification"
    given: dict[str, Any] = {} if batch is None else {"batchSize": batch}
    if data == "mlp":
        some = resolve("image-classification", given)
        kept = ("optimizer", "batchSize", "seed", "deterministic", "epochs", "evalEveryEpochs")
        kept += tuple(RecipeConfig().model_dump(by_alias=True))
        settings = {"data": "points"} | {name: some[name] for name in kept}
    elif recipe == data:
        if recipe == "seq2seq":  # its own default, Muon, is none of the peer's
            given |= {"optimizer": {"name": "adamw"}}
        settings = resolve(recipe, given)
    else:
        settings = resolve(recipe, {"data": data, "epochs": 1000} | given)
    return made(recipe, settings, precision, ranks)


def made(recipe: str, settings: dict[str, Any], precision: str = "fp32", ranks: Ranks | None = None) -> Training:
    """A training with these settings, all of them."""
    raw: dict[str, Any] = {
        "recipe": recipe,
        "config": settings,
        "precision": precision,
        "stop": {"maxSteps": None, "target": None, "patience": None},
        "checkpoint": {"everySeconds": 60.0, "keep": 2},
    }
    config = parse(json.dumps(raw))
    device = device_for(os.environ, Place())
    prepare_torch(os.environ, config, device)
    return set_up(config, device, ranks or Ranks(Place(), device, config.config.deterministic))


def machine(device: torch.device) -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((x.split(":")[1].strip() for x in info if x.startswith("model name")), "?")
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} torch thread(s){gpu}; Python "
        f"{platform.python_version()}, torch {torch.__version__}; load before {os.getloadavg()[0]:.1f}"
    )


ONE_RANK = {"digits": 100, "mnist5k": 60, "gpt": 3, "lstm": 3, "bert": 8, "seq2seq": 8, "resnet": 3}
"""Steps of a round."""


def one_rank(rounds: int, only: list[str] | None) -> None:
    for data, steps in ONE_RANK.items():
        if only is not None and data not in only:
            continue
        training = make(data)
        torch.set_deterministic_debug_mode("default")
        ways = {data: partial(_train, training), "plain": Plain(training).step}
        print("\n".join(ratios(training, rounds, steps, ways)), flush=True)


def two_ranks(rounds: int) -> None:
    """Run in each of the ranks; rank 0 prints."""
    ranks = Ranks(Place.of(os.environ), torch.device("cpu"), deterministic=True)
    ranks.join(os.environ)
    for data, batch, steps in (("mlp", 64, 10), ("mlp", 512, 4), ("mnist5k", 64, 40)):
        training = make(data, "fp32", ranks, batch)
        torch.set_deterministic_debug_mode("default")
        name = f"{data}, batch {batch}"
        ways = {
            name: partial(_train, training),
            f"{name}, ordered as from 3 ranks on": partial(_train, training, ordered=True),
            "DDP": Plain(training).step,
        }
        for line in ratios(training, rounds, steps, ways):
            if ranks.rank == 0:
                print(line, flush=True)


def _train(training: Training, rows: torch.Tensor, *, ordered: bool = False) -> None:
    training.exchange.ordered = ordered
    train_step(training, rows, Vote())


def main() -> int:
    parser = argparse.ArgumentParser(description="The trainer's speed against the plainest good PyTorch loop.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=ONE_RANK, action="append", help="this on one rank, and nothing on two")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if "RANK" in os.environ:
        two_ranks(options.rounds)
        return 0
    print(machine(device_for(os.environ, Place())))
    print("one update of 10 million parameters (over 1: the trainer's takes longer):")
    for name, figure in update.measure().items():
        record(what=name, figure=figure)
        print(f"  {name:36} {figure:,.2f}")
    print("one rank, against the plain loop:")
    one_rank(options.rounds, options.only)
    if options.only is not None:
        return 0
    print("two ranks, against DDP:", flush=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "BENCH_PART": "two-ranks"}
    command = [sys.executable, "-m", "tools.bench.trainer", "--rounds", str(options.rounds)]
    each = [env | {"RANK": "0"}, env | {"RANK": "1", "BENCH_JSON": ""}]
    started = [subprocess.Popen(command, env=one) for one in each]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(main())
