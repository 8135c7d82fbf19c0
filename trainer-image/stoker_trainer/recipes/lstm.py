"""Owns the recipe `lstm`: a recurrent network that learns to predict the next token. Made by the trainer's set-up."""

from __future__ import annotations

from types import MappingProxyType

from stoker_trainer import tokens
from stoker_trainer.recipe import Group

from .gpt import NextToken, load
from .lstm_net import Lstm
from .settings import Lstm as Settings

__all__ = ["Recipe", "load"]


class Recipe(NextToken):
    groups = MappingProxyType({"tokens.weight": Group.PLAIN, "scores.weight": Group.DECAYED})

    def __init__(self, settings: Settings, source: tokens.Tokens) -> None:
        model = settings.model
        arguments = {
            "vocabulary": source.vocabulary,
            "context": model.context,
            "layers": model.layers,
            "width": model.width,
        }
        super().__init__(Lstm(**arguments, dropout=model.dropout), arguments, source)
