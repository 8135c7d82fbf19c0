"""Owns all randomness of training: numbers that are a pure function of (seed, epoch, sample, purpose). Called by data
order, augmentation and dropout.

A counter-based generator has no state: what a sample meets in an epoch does not depend on the rank that trains it, the
number of ranks, the micro-batch or what was drawn before, and a resume needs to restore nothing.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (SplitMix64's mixer), on int64 tensors.
Legend: B samples, N numbers per sample.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import torch

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
Epoch: TypeAlias = int | torch.Tensor
"""A whole number; in a recorded step a tensor that holds it (int64 scalar, on the device). The draws are the same."""
_LANES = 4  # 16-bit numbers in one 64-bit word


class Purpose(IntEnum):
    ORDER = 1
    AUGMENT = 2
    DROPOUT = 3
    HIDE = 4


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


def _mix_int(x: int) -> int:
    x = (x + _GAMMA) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer, element-wise; int64 products wrap as unsigned ones do."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def words(seed: int, epoch: Epoch, purpose: Purpose, samples_B: torch.Tensor, n: int) -> torch.Tensor:
    """`n` random 64-bit words for each sample. Shape: [B, n], int64."""
    if isinstance(epoch, torch.Tensor):
        of_epoch = _mix((epoch ^ _signed(_mix_int(seed))) + _signed(_GAMMA))
        base: Epoch = _mix((of_epoch ^ int(purpose)) + _signed(_GAMMA))
    else:
        base = _signed(_mix_int(_mix_int(_mix_int(seed) ^ epoch) ^ int(purpose)))
    keys_B = _mix(samples_B * _signed(_GAMMA) + base)
    steps_N = torch.arange(1, n + 1, device=samples_B.device) * _signed(_GAMMA)
    return _mix(keys_B[:, None] + steps_N)


def uniforms(seed: int, epoch: Epoch, purpose: Purpose, samples_B: torch.Tensor, n: int) -> torch.Tensor:
    """`n` numbers in [0, 1) for each sample. Shape: [B, n], float32."""
    return ((words(seed, epoch, purpose, samples_B, n) >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def keep_mask(seed: int, epoch: Epoch, samples_B: torch.Tensor, n: int, dropout: float) -> torch.Tensor:
    """Dropout's factors: 0 with probability `dropout`, else 1 / (1 - dropout). Shape: [B, n], float32.

    Four 16-bit lanes per word, so the probability is exact to 1/65536 and the cost a quarter.
    """
    lanes = words(seed, epoch, Purpose.DROPOUT, samples_B, -(-n // _LANES)).view(torch.int16)[:, :n]
    threshold = round(dropout * 65536) - 32768
    return (lanes >= threshold).to(torch.float32) * (1.0 / (1.0 - dropout))


def order(seed: int, epoch: int, rows: int, device: torch.device) -> torch.Tensor:
    """The epoch's one global order of all training rows. Shape: [rows], int64."""
    keys = words(seed, epoch, Purpose.ORDER, torch.arange(rows, device=device), 1)[:, 0]
    return torch.argsort(keys, stable=True)
