"""A recipe in one file, with BatchNorm and dropout: what the seams promise holds for a model the trainer never saw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import RecipeConfig, resolve  # noqa: E402
from stoker_trainer.recipe import Batch, Export, Group  # noqa: E402
from stoker_trainer.recipes import Entry  # noqa: E402
from stoker_trainer.settings import ByEpochs  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
OPTIMIZER = resolve("gpt", {})["optimizer"] | {"name": "muon", "learningRate": 0.03, "weightDecay": 0.0, "ema": 0.9}
SETTINGS = {"data": "halves", "optimizer": OPTIMIZER, "batchSize": 61, "seed": 1, "deterministic": True, "epochs": 4}
SETTINGS |= {"evalEveryEpochs": 1} | RecipeConfig().model_dump(mode="json", by_alias=True)
ENTRY = Entry(ByEpochs, __name__)
IN_EACH_RANK = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from {Path(__file__).stem} import ENTRY
from stoker_trainer.recipes import RECIPES
RECIPES["toy"] = ENTRY
"""


@dataclass(frozen=True)
class Halves:
    """Points, and on which side of a plane each lies."""

    x: torch.Tensor
    train_rows, test_rows, words = 1000, 200, "1,000 points, 200 to test"
    facts = {}

    def batch(self, seed, epoch, samples_B):
        x = self.x[samples_B]
        return Batch(x, (x.sum(1) > 0).long(), samples_B, seed, epoch)

    def test_batch(self, samples_B):
        return self.batch(0, 0, samples_B + self.train_rows)


def load(settings, device):
    return Halves(torch.randn(1200, 8, generator=torch.Generator().manual_seed(7)).to(device))


class Recipe:
    blocks = ()
    units, groups, metrics = 1, {"4.weight": Group.DECAYED}, {"accuracy": "max", "loss": "min"}

    def __init__(self, settings, source):
        nn = torch.nn
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    def loss(self, batch):
        scores = self.net(batch.inputs).float()
        return torch.nn.functional.cross_entropy(scores, batch.targets, reduction="sum"), len(batch.targets)

    def score(self, batch):
        correct = (self.net(batch.inputs).argmax(1) == batch.targets).sum()
        loss, count = self.loss(batch)
        return torch.stack([correct, loss]), count

    def export(self):
        return Export(Path(__file__), {}, "")


@pytest.mark.parametrize(("ranks", "precision"), [(1, "fp16"), (2, "fp32")])
def test_a_toy_recipe_learns_and_an_interruption_changes_no_bit(run, make_config, ranks, precision):
    config = make_config(precision=precision) | {"recipe": "toy", "config": SETTINGS}
    whole, parts = run.whole_and_interrupted(config, ranks, at=20, script=IN_EACH_RANK)
    assert parts == whole and "rng" in whole[0]
    assert run.progress()["summary"]["accuracy"] > 0.9
