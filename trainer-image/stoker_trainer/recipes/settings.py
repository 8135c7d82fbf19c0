"""Owns the settings of each recipe, complete, no defaults (those are `stoker.spec.recipes`'). Read by `config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker_trainer.settings import ByEpochs, BySteps, at_least, fraction


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    area: float = at_least(0)
    pad: int = at_least(0)
    flip: bool
    cutout: int = at_least(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    depth: Literal[10, 18, 34, 50, 101, 152]
    width: int = at_least(1)
    stem: Literal["auto", "cifar", "imagenet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet(ByEpochs):
    model: Residual
    augment: Crop
    label_smoothing: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(BySteps):
    eval_samples: int = at_least(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    size: Literal["tiny", "small", "10m", "124m", "350m", "774m", "1558m"]
    context: int = at_least(2)
    dropout: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt(Text):
    model: Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    size: Literal["tiny", "base", "large"]
    context: int = at_least(2)
    dropout: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bert(Text):
    model: Encoder
    hidden: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    layers: int = at_least(1)
    width: int = at_least(1)
    context: int = at_least(2)
    dropout: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lstm(Text):
    model: Recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoder:
    size: Literal["tiny", "base"]
    context: int = at_least(2)
    dropout: float = fraction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2seq(Text):
    model: EncoderDecoder
