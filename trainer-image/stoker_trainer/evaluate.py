"""Owns the evaluation on the fixed test rows, shared out over the ranks and summed exactly. Called by the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .augment import normalised
from .precision import autocast
from .training import Training

_LARGEST_BATCH = 512


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float


def evaluate(training: Training, beat: Callable[[], None]) -> Score:
    """Accuracy and mean cross-entropy (without label smoothing) over all test rows, equal on every rank.

    A rank short of memory takes smaller batches on its own: nothing is exchanged before the sums.
    """
    data, ranks = training.data, training.ranks
    rows = torch.arange(ranks.rank, len(data.test_labels), ranks.world, device=training.device)
    correct, loss, start, batch = 0.0, 0.0, 0, _LARGEST_BATCH
    training.net.eval()
    while start < len(rows):
        try:
            part = _part(training, rows[start : start + batch])
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
            continue
        correct, loss, start = correct + part[0], loss + part[1], start + batch
        beat()
    training.net.train()
    correct, loss = ranks.sum_numbers([correct, loss])
    return Score(correct / len(data.test_labels), loss / len(data.test_labels))


def _part(training: Training, rows: torch.Tensor) -> tuple[float, float]:
    """How many of `rows` are classified right, and the sum of their losses."""
    data = training.data
    with torch.no_grad():
        images = normalised(data.test_images[rows], data.scaling)
        with autocast(training.precision, training.device):
            scores = training.net(images)
        labels = data.test_labels[rows]
        loss = F.cross_entropy(scores.float(), labels, reduction="sum")
        correct = (scores.argmax(1) == labels).sum()
    return float(correct.item()), float(loss.item())
