"""The network of the recipe `lstm`. This file needs torch alone: a copy of it lies beside the exported weights.

Legend: B samples, T positions, W width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Lstm(nn.Module):  # type: ignore[misc]
    """A recurrent network that predicts each next token, from nothing at a sample's begin."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.scores = nn.Linear(width, vocabulary)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Scores of each position's next token. Shape: [B, T] int64 → [B, T, V]."""
        return F.linear(self.features(tokens_BT), *self.output())

    def features(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """What the scores are made of. Shape: [B, T] int64 → [B, T, W]."""
        x_BTW, _ = self.cells(F.dropout(self.tokens(tokens_BT), self.dropout, self.training))
        return F.dropout(x_BTW, self.dropout, self.training)

    def output(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias that turn features into scores."""
        return self.scores.weight, self.scores.bias
