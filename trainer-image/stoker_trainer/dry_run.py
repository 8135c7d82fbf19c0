"""Owns the dry run: what a config would train and what that costs, by a model without memory. Called by `main`.

The model is built on torch's `meta` device and runs one sample forward and backward: shapes and operations, no numbers.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable

import torch

from .config import TrainerConfig
from .flat import group_of
from .measure import flops_of_sample, moved
from .rate import range_steps
from .recipe import Group, Recipe, Source
from .recipes import RECIPES
from .settings import Optimizer
from .training import check_metrics, rows_of_epoch

_STATE_BYTES = {"adamw": 16, "sgd": 12, "muon": 12}  # per parameter: weight, gradient, what the optimizer keeps; fp32


def show(config: TrainerConfig, text: str, out: Callable[[str], object]) -> None:
    """Raises: BadConfig where the data is missing or the target's metric is unknown."""
    module, settings = importlib.import_module(RECIPES[config.recipe].module), config.config
    source: Source = module.load(settings, torch.device("cpu"))
    with torch.device("meta"):
        recipe: Recipe = module.Recipe(settings, source)
    check_metrics(config, recipe)
    parameters = sum(p.numel() for p in recipe.net.parameters())
    flops = flops_of_sample(recipe, source, torch.device("cpu"), "meta")
    kept = _kept_of_one_sample(recipe, source)
    steps = settings.total_steps(rows_of_epoch(recipe.net, source.train_rows, settings.batch_size))
    steps = min(steps, config.stop.max_steps or steps)
    out(json.dumps(json.loads(text), indent=1))
    out(source.words)
    out(f"parameters: {parameters:,}")
    out(f"steps: {steps:,} of {settings.batch_size:,} samples")
    kept_for_good = sum(_state_bytes(settings.optimizer, name, p, recipe) for name, p in recipe.net.named_parameters())
    out(f"memory: {_size(kept_for_good)} for weights, gradients and optimizer;")
    out(f"  about {_size(kept)} of activations per sample of the micro-batch, in fp32")
    if settings.batch == "auto":
        out("micro-batch: found by trials at the start, at most a rank's whole share")
    rule = settings.optimizer
    if rule.lr == "find":
        count = range_steps(steps)
        out(f"learning rate: found by {count} steps of {rule.base_batch or settings.batch_size:,} samples at the start")
    elif settings.rate_factor != 1:
        out(f"learning rate: {rule.learning_rate * settings.rate_factor:.3g}, scaled from {rule.base_batch:,} samples")
    out(f"FLOPs: {flops:.3g} per sample forward and backward, {flops * settings.batch_size:.3g} per step")


def _state_bytes(rule: Optimizer, name: str, parameter: torch.Tensor, recipe: Recipe) -> int:
    by_adamw = rule.name == "muon" and group_of(name, parameter, recipe.groups) != Group.MATRIX
    average = 4 if rule.ema > 0 else 0
    return int(parameter.numel()) * (_STATE_BYTES["adamw" if by_adamw else rule.name] + average)


def _kept_of_one_sample(recipe: Recipe, source: Source) -> int:
    """Bytes kept for the backward pass."""
    batch = moved(source.batch(0, 0, torch.arange(1)), "meta")
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        owner = tensor._base if tensor._is_view() else tensor
        if not (owner.is_leaf and owner.requires_grad):  # a parameter, or a view of one
            kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        recipe.loss(batch)
    return kept


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.3g} GiB"
