"""The recipes: each module owns a model, its data and its loss. Nothing outside of this package names a model.

A recipe's module has `load(settings, device)`, which returns a `recipe.Source`, and a class `Recipe(settings, source)`,
a `recipe.Recipe`. Importing this package imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker_trainer.settings import Settings

from .settings import Bert, Gpt, ImageClassification, Lstm, ResNet, Seq2seq


@dataclass(frozen=True)
class Entry:
    settings: type[Settings]
    module: str


RECIPES = {
    "bert": Entry(Bert, "stoker_trainer.recipes.bert"),
    "gpt": Entry(Gpt, "stoker_trainer.recipes.gpt"),
    "image-classification": Entry(ImageClassification, "stoker_trainer.recipes.images"),
    "lstm": Entry(Lstm, "stoker_trainer.recipes.lstm"),
    "resnet": Entry(ResNet, "stoker_trainer.recipes.resnet"),
    "seq2seq": Entry(Seq2seq, "stoker_trainer.recipes.seq2seq"),
}
