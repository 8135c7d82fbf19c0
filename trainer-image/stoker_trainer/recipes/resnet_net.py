"""The network of the recipe `resnet`. This file needs torch alone: a copy of it lies beside the exported weights.

Source: He et al. 2015; bottlenecks stride in their 3×3 convolution ("v1.5"), and each block's last norm begins at zero
(Goyal et al. 2017). The stem for small images is the paper's for CIFAR: one 3×3 convolution, nothing halved.
Legend: B samples, C channels, H height, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

STAGES = {  # depth → blocks per stage
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
BOTTLENECK_FROM = 50


class Norm(nn.BatchNorm2d):  # type: ignore[misc]
    """BatchNorm; one value per channel has no variance, so it is scaled and shifted alone.

    Not by the running statistics: in training nothing depends on those, so ranks may differ in them between two saves.
    """

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        if self.training and x_BCHW.numel() == x_BCHW.shape[1]:
            return x_BCHW * self.weight[:, None, None] + self.bias[:, None, None]
        return super().forward(x_BCHW)


class Block(nn.Module):  # type: ignore[misc]
    """Convolutions beside a way around them: two of 3×3, or (bottleneck) 1×1, 3×3, 1×1 to four times the width."""

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.after = width * (4 if bottleneck else 1)
        kernels = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]
        widths = [before, *[width] * (len(kernels) - 1), self.after]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(widths[i], widths[i + 1], size, step, size // 2, bias=False)
            for i, (size, step) in enumerate(kernels)
        )
        self.norms = nn.ModuleList(Norm(count) for count in widths[1:])
        nn.init.zeros_(self.norms[-1].weight)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or before != self.after:
            self.around = nn.Sequential(nn.Conv2d(before, self.after, 1, stride, bias=False), Norm(self.after))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        y = x_BCHW
        for i, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolve(F.relu(y, inplace=True) if i else y))
        return F.relu(y + self.around(x_BCHW), inplace=True)


class ResNet(nn.Module):  # type: ignore[misc]
    """A residual network of `depth` layers for images of any size; `width` channels in its first stage."""

    def __init__(self, depth: int, width: int, stem: str, channels: int, classes: int) -> None:
        super().__init__()
        small = stem == "cifar"
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False),
            Norm(width),
            nn.ReLU(inplace=True),
            nn.Identity() if small else nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.ModuleList()
        features = width
        for stage, count in enumerate(STAGES[depth]):
            for number in range(count):
                stride = 2 if stage and not number else 1
                self.blocks.append(Block(features, width << stage, stride, depth >= BOTTLENECK_FROM))
                features = self.blocks[-1].after
        self.classify = nn.Linear(features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Scores per class. Shape: [B, C, H, W] → [B, classes]."""
        x = self.stem(images_BCHW)
        for block in self.blocks:
            x = block(x)
        return self.classify(x.mean((2, 3)))
