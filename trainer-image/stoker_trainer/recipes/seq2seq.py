"""Owns the recipe `seq2seq`, a Transformer that learns to turn a text into another. Made by the trainer's set-up.

Legend: B pairs, T positions of a target, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F

from stoker_trainer import pairs
from stoker_trainer.recipe import Batch, Export

from . import seq2seq_net
from .gpt import EMBEDDINGS
from .settings import Seq2seq as Settings

SIZES = {"tiny": (2, 4, 64), "base": (6, 8, 512)}  # layers of each side, heads, width
_LOAD = '''\
"""Loads these weights in plain PyTorch; needs nothing but torch and the files of this folder."""

import json
import sys
from pathlib import Path

import torch
from model import BEGIN, END, Seq2seq

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
net = Seq2seq(**about["arguments"])
net.load_state_dict(torch.load(here / "weights.pt", map_location="cpu", weights_only=True))
net.eval()


def predict(text):
    """The most likely target of `text`, byte by byte."""
    source, target = torch.tensor([[*text.encode(), END]]), [BEGIN]
    with torch.no_grad():
        while target[-1] != END and len(target) < about["arguments"]["context"]:
            target.append(int(net(source, torch.tensor([target]))[0, -1].argmax()))
    return bytes(token for token in target if token < 256).decode(errors="replace")


if __name__ == "__main__":
    print(predict(sys.argv[1] if len(sys.argv) > 1 else "stoker"))
'''


def load(settings: Settings, device: torch.device) -> pairs.Pairs:
    """Raises: BadConfig where the data is missing or is no folder of pairs."""
    return pairs.load(settings.data, settings.model.context, settings.eval_samples, device)


class Recipe:
    groups = EMBEDDINGS
    metrics: Mapping[str, Literal["max", "min"]] = MappingProxyType({"loss": "min", "accuracy": "max"})

    def __init__(self, settings: Settings, source: pairs.Pairs) -> None:
        layers, heads, width = SIZES[settings.model.size]
        self._arguments = {"context": settings.model.context, "layers": layers, "heads": heads, "width": width}
        self._digest, self.units = source.digest, source.mean_length
        self.net = seq2seq_net.Seq2seq(**self._arguments, dropout=settings.model.dropout)
        self.blocks = [*self.net.encoder, *self.net.decoder]

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        scores, wanted = self._predicted(batch)
        return _summed(scores, wanted), (wanted >= 0).sum()

    def score(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        scores, wanted = self._predicted(batch)
        correct = (scores.argmax(-1) == wanted).sum()
        return torch.stack([_summed(scores, wanted), correct]), (wanted >= 0).sum()

    def _predicted(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, and what they are to be: the target's tokens and its END, then -1. Shape: [B, T, V], [B, T]."""
        begin_B1 = torch.full_like(batch.targets[:, :1], seq2seq_net.BEGIN)
        scores_BTV = self.net(batch.inputs, torch.cat([begin_B1, batch.targets[:, :-1]], 1)).float()
        return scores_BTV, torch.where(seq2seq_net.real(batch.targets), batch.targets, -1)

    def export(self) -> Export:
        about = {"class": "Seq2seq", "splitDigest": self._digest, "arguments": {**self._arguments, "dropout": 0.0}}
        return Export(Path(seq2seq_net.__file__), about, _LOAD)


def _summed(scores_BTV: torch.Tensor, wanted_BT: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores_BTV.flatten(0, 1), wanted_BT.flatten(), ignore_index=-1, reduction="sum")
