"""Owns the evaluation on the fixed test samples, shared out over the ranks and summed exactly. Called by the loop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .errors import out_of_memory
from .precision import autocast
from .training import Training, share_buffers

_LARGEST_BATCH = 512  # terms


def evaluate(training: Training, beat: Callable[[], None]) -> dict[str, float]:
    """The recipe's metrics, as means over all test samples, equal on every rank.

    A rank short of memory takes smaller batches on its own: nothing is exchanged before the sums.
    Cost: reads the device once.
    """
    recipe, ranks = training.recipe, training.ranks
    share_buffers(training)
    rows = torch.arange(ranks.rank, training.data.test_rows, ranks.world, device=training.device)
    sums = torch.zeros(len(recipe.metrics), dtype=torch.float64, device=training.device)
    terms, start, batch = 0, 0, max(training.micro_batch, _LARGEST_BATCH // recipe.units)
    recipe.net.eval()
    while start < len(rows):
        try:
            part, count = _part(training, rows[start : start + batch])
        except (RuntimeError, MemoryError) as error:
            if batch == 1 or not out_of_memory(error):
                raise
            batch = (batch + 1) // 2
            continue
        sums += part
        terms, start = terms + count, start + batch
        beat()
    recipe.net.train()
    *totals, all_terms = ranks.sum_numbers([*sums.tolist(), float(terms)])
    return {name: total / all_terms for name, total in zip(recipe.metrics, totals, strict=True)}


def _part(training: Training, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
    with torch.no_grad():
        batch = training.data.test_batch(rows)
        with autocast(training.precision, training.device):
            return training.recipe.score(batch)
