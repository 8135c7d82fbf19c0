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
    ranks, net = training.ranks, training.net
    share_buffers(training)
    rows = torch.arange(ranks.rank, training.data.test_rows, ranks.world, device=training.device)
    net.eval()
    with training.averaged():
        sums, terms = _sums(training, rows, beat)
    net.train()
    *totals, all_terms = ranks.sum_numbers([*sums.tolist(), float(terms)])
    return {name: total / all_terms for name, total in zip(training.recipe.metrics, totals, strict=True)}


def _sums(training: Training, rows: torch.Tensor, beat: Callable[[], None]) -> tuple[torch.Tensor, int | torch.Tensor]:
    """Of this rank's rows: the metrics' sums, on the device, and the number of terms."""
    sums = torch.zeros(len(training.recipe.metrics), dtype=torch.float64, device=training.device)
    terms: int | torch.Tensor = 0
    start, batch = 0, max(training.micro_batch, _LARGEST_BATCH // training.recipe.units)
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
    return sums, terms


def _part(training: Training, rows: torch.Tensor) -> tuple[torch.Tensor, int | torch.Tensor]:
    with torch.no_grad():
        batch = training.data.test_batch(rows)
        with autocast(training.precision, training.device):
            return training.recipe.score(batch)
