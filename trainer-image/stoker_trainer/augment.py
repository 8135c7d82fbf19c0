"""Owns what happens to images between memory and model: affine changes and normalisation, batched, on the device.

Called by sources (training) and by evaluation (no change). All draws come from `counter`: see there why.
Legend: B samples, H height, W width, C channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .counter import Epoch, Purpose, uniforms, words
from .recipes.settings import Augment, Crop


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
    images_BHW: torch.Tensor, samples_B: torch.Tensor, seed: int, epoch: Epoch, rule: Augment, scaling: Scaling
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


def cropped(
    images: torch.Tensor, rows_B: torch.Tensor, samples_B: torch.Tensor, seed: int, epoch: Epoch, rule: Crop
) -> torch.Tensor:
    """The images `rows_B`, each shifted and mirrored by its own draw; beyond an edge is 0.

    One gather of bytes. Shape: [rows, H, W, C] uint8 → [B, H, W, C] uint8.
    """
    if rule.pad == 0 and not rule.flip:
        return images[rows_B]
    height, width = images.shape[1:3]
    drawn = _drawn(seed, epoch, samples_B)
    ways = 2 * rule.pad + 1
    down_B, right_B = (((drawn[:, i] * ways) >> 24) - rule.pad for i in (0, 1))
    y_BH = torch.arange(height, device=images.device) + down_B[:, None]
    x_BW = torch.arange(width, device=images.device) + right_B[:, None]
    if rule.flip:
        x_BW = torch.where(drawn[:, 2:3] < 1 << 23, width - 1 - x_BW, x_BW)
    places = rows_B[:, None, None], y_BH.clamp(0, height - 1)[:, :, None], x_BW.clamp(0, width - 1)[:, None, :]
    outside = ((y_BH < 0) | (y_BH >= height))[:, :, None] | ((x_BW < 0) | (x_BW >= width))[:, None, :]
    return images[places].masked_fill_(outside[..., None], 0)


def zoomed(images_BHWC: torch.Tensor, samples_B: torch.Tensor, seed: int, epoch: Epoch, rule: Crop) -> torch.Tensor:
    """Random resized crop: of each image a part of at least `rule.area` of it, 3:4 to 4:3, scaled to the whole size.

    Shape: [B, H, W, C] float32. Bilinear. Source: Szegedy et al. 2015; a side is never longer than the image's.
    """
    share, stretch, right, down = (_drawn(seed, epoch, samples_B, 9)[:, 5:].float() * 2.0**-24).unbind(1)
    area = rule.area + share * (1 - rule.area)
    ratio = torch.exp((2 * stretch - 1) * math.log(4 / 3))
    width, height = ((area * shape).sqrt().clamp(max=1.0) for shape in (ratio, 1 / ratio))
    none = torch.zeros_like(width)
    x, y = (2 * right - 1) * (1 - width), (2 * down - 1) * (1 - height)
    matrix = torch.stack([width, none, x, none, height, y], dim=1).view(-1, 2, 3)
    images = images_BHWC.permute(0, 3, 1, 2)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False).permute(0, 2, 3, 1)


def fill_holes(images_BHWC: torch.Tensor, samples_B: torch.Tensor, seed: int, epoch: Epoch, rule: Crop) -> None:
    """Cutout: in each (normalised) image a square of `rule.cutout` pixels a side becomes the mean, 0.

    Its centre lies in the image. Source: DeVries and Taylor 2017.
    """
    drawn = _drawn(seed, epoch, samples_B)
    inside = []
    for i, side in ((3, images_BHWC.shape[1]), (4, images_BHWC.shape[2])):
        first_B = ((drawn[:, i] * side) >> 24) - rule.cutout // 2
        away = torch.arange(side, device=images_BHWC.device) - first_B[:, None]
        inside.append((away >= 0) & (away < rule.cutout))
    images_BHWC.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :])[..., None], 0.0)


def _drawn(seed: int, epoch: Epoch, samples_B: torch.Tensor, count: int = 5) -> torch.Tensor:
    """Numbers of 24 bits for each sample; more begin with the same. Shape: [B, count], int64."""
    return (words(seed, epoch, Purpose.AUGMENT, samples_B, count) >> 40) & 0xFFFFFF
