"""The network of the recipe `image-classification`. This file needs torch alone: a copy of it lies beside the exported
weights, so the definition that loads them is the one that was trained.

GroupNorm, not BatchNorm: its result for a sample depends on that sample only, so the split into ranks and micro-batches
changes nothing but the order of sums, there are no running buffers to keep equal over ranks, and evaluation computes
what training did. Average pooling, not max pooling: its backward adds in a fixed order on every device, and on both
digit sets it is as accurate (docs/trainer.md).
Legend: B samples, C channels, H height, W width, F features.
"""

from __future__ import annotations

import torch
from torch import nn


class DigitNet(nn.Module):  # type: ignore[misc]
    """Two convolutions and a linear layer for square gray images of `size` pixels a side."""

    def __init__(self, width: int, size: int, classes: int) -> None:
        super().__init__()
        stride = 1 if size <= 16 else 2  # 28 pixels bear halving at once: a quarter of the work, same accuracy
        groups = next(g for g in range(max(1, width // 4), 0, -1) if width % g == 0)
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=stride, padding=2, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.GroupNorm(groups, 2 * width),
            nn.ReLU(),
        )
        side = ((size - 1) // stride + 1) // 2
        self.features = 2 * width * side * side
        self.classify = nn.Linear(self.features, classes)

    def forward(self, images_B1HW: torch.Tensor, keep_BF: torch.Tensor | None = None) -> torch.Tensor:
        """Scores per class. `keep_BF` holds dropout's factors while training. Shape: [B, 1, H, W] → [B, classes]."""
        x_BF = self.convolutions(images_B1HW).flatten(1)
        if keep_BF is not None:
            x_BF = x_BF * keep_BF
        return self.classify(x_BF)
