"""Owns the settings of each recipe, complete, no defaults (those are `stoker.spec.recipes`'). Read by `config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker_trainer.settings import ByEpochs, at_least, fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Cnn:
    width: int = at_least(4)
    dropout: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    shift: float = at_least(0)
    rotate: float = at_least(0)
    scale: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClassification(ByEpochs):
    data: Literal["digits", "mnist5k"]
    model: Cnn
    augment: Augment
    label_smoothing: float = fraction()
