"""Owns the recipe `bert`: an encoder that learns to restore hidden tokens. Made by the trainer's set-up.

Of each sample the same number of positions is hidden, so shapes are fixed and only those positions are scored. Of these
80 % show the token for "hidden", 10 % another token, 10 % their own. Source: Devlin et al. 2019.
Legend: B samples, T positions, K hidden positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch

from stoker_trainer import cross_entropy, tokens
from stoker_trainer.counter import Purpose, uniforms
from stoker_trainer.recipe import Batch, Export

from . import bert_net
from .gpt import EMBEDDINGS, load
from .settings import Bert as Settings

__all__ = ["Recipe", "load"]
SIZES = {"tiny": (2, 2, 64), "base": (12, 12, 768), "large": (24, 16, 1024)}  # layers, heads, width
_LOAD = '''\
"""Loads these weights in plain PyTorch; needs nothing but torch and the files of this folder."""

import json
import sys
from pathlib import Path

import torch
from model import Bert

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
net = Bert(**about["arguments"])
net.load_state_dict(torch.load(here / "weights.pt", map_location="cpu", weights_only=True))
net.eval()


def restore(tokens, hidden):
    """The most likely tokens at the positions `hidden` of `tokens` (a list of numbers, at most the context long)."""
    shown = [net.vocabulary if place in hidden else token for place, token in enumerate(tokens)]
    with torch.no_grad():
        return net.restore(torch.tensor([shown]), torch.tensor([list(hidden)])).argmax(-1)[0].tolist()


def predict(text):
    """`text`, of a vocabulary of bytes, with each "_" restored."""
    out = bytearray(text.encode())
    places = [place for place, byte in enumerate(out) if byte == ord("_")]
    for place, byte in zip(places, restore(out, places) if places else ()):
        out[place] = byte
    return out.decode(errors="replace")


if __name__ == "__main__":
    print(predict(sys.argv[1] if len(sys.argv) > 1 else "import _ys"))
'''


class Recipe:
    groups = EMBEDDINGS
    metrics: Mapping[str, Literal["max", "min"]] = MappingProxyType({"loss": "min", "accuracy": "max"})

    def __init__(self, settings: Settings, source: tokens.Tokens) -> None:
        layers, heads, width = SIZES[settings.model.size]
        self._arguments = {
            "vocabulary": source.vocabulary,
            "context": settings.model.context,
            "layers": layers,
            "heads": heads,
            "width": width,
        }
        self._digest = source.digest
        self.units = max(1, round(settings.hidden * settings.model.context))
        self.net = bert_net.Bert(**self._arguments, dropout=settings.model.dropout)
        self.blocks = self.net.blocks

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        return cross_entropy.loss(*self._hidden(batch)), self.units * len(batch.inputs)

    def score(self, batch: Batch) -> tuple[torch.Tensor, int]:
        return cross_entropy.score(*self._hidden(batch)), self.units * len(batch.inputs)

    def _hidden(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the hidden positions alone: features, what turns them into scores, and the right tokens."""
        shown_BT, hidden_BK = self.hide(batch)
        x_BKW = self.net.features(shown_BT, hidden_BK)
        return x_BKW.flatten(0, 1), *self.net.output(), batch.inputs.gather(1, hidden_BK).flatten()

    def hide(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens with some hidden, and at which positions: a pure function of the batch."""
        context, vocabulary = batch.inputs.shape[1], self._arguments["vocabulary"]
        draws = uniforms(batch.seed, batch.epoch, Purpose.HIDE, batch.samples_B, context + 2 * self.units)
        hidden_BK = draws[:, :context].topk(self.units, dim=1).indices
        how_BK, other_BK = draws[:, context:].split(self.units, dim=1)
        own_BK = batch.inputs.gather(1, hidden_BK)
        other = (other_BK * vocabulary).long()
        shown_BK = torch.where(how_BK < 0.8, vocabulary, torch.where(how_BK < 0.9, other, own_BK))
        return batch.inputs.scatter(1, hidden_BK, shown_BK), hidden_BK

    def export(self) -> Export:
        about = {"class": "Bert", "splitDigest": self._digest, "arguments": {**self._arguments, "dropout": 0.0}}
        return Export(Path(bert_net.__file__), about, _LOAD)
