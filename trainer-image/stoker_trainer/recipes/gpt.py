"""Owns the recipe `gpt`, a decoder that learns to predict the next token, and what such recipes share. Made by the
trainer's set-up.

Legend: B samples, T positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from stoker_trainer import cross_entropy, tokens
from stoker_trainer.recipe import Batch, Export, Group

from . import gpt_net
from .settings import Bert, Lstm
from .settings import Gpt as Settings

SIZES = {  # name → layers, heads, width; from 124m on GPT-2's
    "tiny": (2, 2, 64),
    "small": (4, 4, 128),
    "10m": (6, 6, 384),
    "124m": (12, 12, 768),
    "350m": (24, 16, 1024),
    "774m": (36, 20, 1280),
    "1558m": (48, 25, 1600),
}
EMBEDDINGS = MappingProxyType({"tokens.weight": Group.PLAIN, "positions.weight": Group.PLAIN})
_LOAD = '''\
"""Loads these weights in plain PyTorch; needs nothing but torch and the files of this folder."""

import json
import sys
from pathlib import Path

import torch
from model import CLASS

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
net = CLASS(**about["arguments"])
net.load_state_dict(torch.load(here / "weights.pt", map_location="cpu", weights_only=True))
net.eval()


def generate(tokens, count, temperature=0.8):
    """`tokens` (a list of numbers; bytes where the vocabulary is 256) and `count` more."""
    out = list(tokens)
    with torch.no_grad():
        for _ in range(count):
            scores = net(torch.tensor([out[-about["arguments"]["context"] :]]))[0, -1]
            out.append(int(torch.multinomial(torch.softmax(scores / temperature, 0), 1)))
    return out


def predict(text):
    """`text`, of a vocabulary of bytes, and how it goes on."""
    return bytes(generate(text.encode(), 200)).decode(errors="replace")


if __name__ == "__main__":
    print(predict(sys.argv[1] if len(sys.argv) > 1 else "def "))
'''


def load(settings: Bert | Lstm | Settings, device: torch.device) -> tokens.Tokens:
    """The tokens of any recipe for text.

    Raises: BadConfig where the data is missing or is no folder of tokens.
    """
    return tokens.load(settings.data, settings.model.context, settings.eval_samples, device)


class NextToken:
    """A network with `features` of each position and the `output` that scores the next token from them."""

    groups = EMBEDDINGS
    metrics: Mapping[str, Literal["max", "min"]] = MappingProxyType({"loss": "min", "accuracy": "max"})

    def __init__(self, net: nn.Module, arguments: dict[str, int], source: tokens.Tokens) -> None:
        self.net, self.units, self.blocks = net, source.context, getattr(net, "blocks", ())
        self._about = {
            "class": type(net).__name__,
            "arguments": {**arguments, "dropout": 0.0},
            "splitDigest": source.digest,
        }

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        return cross_entropy.loss(*self._positions(batch)), batch.targets.numel()

    def score(self, batch: Batch) -> tuple[torch.Tensor, int]:
        return cross_entropy.score(*self._positions(batch)), batch.targets.numel()

    def _positions(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Features, what turns them into scores, and the right tokens."""
        return self.net.features(batch.inputs).flatten(0, 1), *self.net.output(), batch.targets.flatten()

    def export(self) -> Export:
        network = Path(inspect.getfile(type(self.net)))
        return Export(network, self._about, _LOAD.replace("CLASS", type(self.net).__name__))


class Recipe(NextToken):
    def __init__(self, settings: Settings, source: tokens.Tokens) -> None:
        layers, heads, width = SIZES[settings.model.size]
        arguments = {
            "vocabulary": source.vocabulary,
            "context": settings.model.context,
            "layers": layers,
            "heads": heads,
            "width": width,
        }
        super().__init__(gpt_net.Gpt(**arguments, dropout=settings.model.dropout), arguments, source)
