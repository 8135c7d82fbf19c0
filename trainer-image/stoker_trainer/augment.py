"""Owns what happens to images between memory and model: affine changes and normalisation, batched, on the device.

Called by the step (training) and by evaluation (no change). All draws come from `counter`: see there why.
Legend: B samples, H height, W width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .counter import Purpose, uniforms
from .recipes.settings import Augment


@dataclass(frozen=True)
class Scaling:
    """From stored bytes to what the model reads: x / max_value, then (x - mean) / std, of the training rows."""

    max_value: int
    mean: float
    std: float


def normalised(images_BHW: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """Shape: [B, H, W] uint8 → [B, 1, H, W] float32."""
    x = images_BHW[:, None].to(torch.float32) * (1.0 / scaling.max_value)
    return (x - scaling.mean) / scaling.std


def augmented(
    images_BHW: torch.Tensor, samples_B: torch.Tensor, seed: int, epoch: int, rule: Augment, scaling: Scaling
) -> torch.Tensor:
    """Each image turned, scaled and shifted by its own draw, then normalised. Shape: [B, H, W] uint8 → [B, 1, H, W].

    Outside the image is 0, the background, so the change comes before the normalisation.
    """
    if rule.shift == rule.rotate == rule.scale == 0:
        return normalised(images_BHW, scaling)
    x = images_BHW[:, None].to(torch.float32) * (1.0 / scaling.max_value)
    draws = uniforms(seed, epoch, Purpose.AUGMENT, samples_B, 4) * 2 - 1
    matrix = affine_matrices(draws, rule, images_BHW.shape[-2], images_BHW.shape[-1])
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (x - scaling.mean) / scaling.std


def affine_matrices(draws_B4: torch.Tensor, rule: Augment, height: int, width: int) -> torch.Tensor:
    """The inverse maps (output → input, in units of half an image) for draws in [-1, 1). Shape: [B, 4] → [B, 2, 3]."""
    angle = draws_B4[:, 0] * math.radians(rule.rotate)
    shrink = 1.0 / (1.0 + draws_B4[:, 1] * rule.scale)
    cos, sin = shrink * angle.cos(), shrink * angle.sin()
    right, down = draws_B4[:, 2] * (2 * rule.shift / width), draws_B4[:, 3] * (2 * rule.shift / height)
    return torch.stack([cos, -sin, right, sin, cos, down], dim=1).view(-1, 2, 3)
