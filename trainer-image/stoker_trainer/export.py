"""Owns the result of a training: weights that load in plain PyTorch, and what is needed to use them. Called by `main`
(rank 0) after the last evaluation.

A plain state_dict and a copy of the network's file (which needs torch alone), not TorchScript (deprecated) or
torch.export (its archive binds the reader to a near torch version, and cost seconds of imports): what a person can
read, load and change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from .data import CLASSES
from .fence import Fence
from .files import replace, replace_json
from .recipes import digit_net
from .training import Training

_LOAD = '''\
"""Loads these weights in plain PyTorch; needs nothing but torch and the files of this folder."""

import json
from pathlib import Path

import torch
from model import DigitNet

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
net = DigitNet(**about["arguments"])
net.load_state_dict(torch.load(here / "weights.pt", map_location="cpu", weights_only=True))
net.eval()


def classify(images):
    """The class of each image. Shape: [rows, size, size], values from 0 (background) to about["maxValue"]."""
    x = (images[:, None].float() / about["maxValue"] - about["mean"]) / about["std"]
    with torch.no_grad():
        return net(x).argmax(1)


if __name__ == "__main__":
    print(about["data"], about["arguments"], f"test accuracy {about['accuracy']:.4f}")
'''


def export(training: Training, folder: Path, fence: Fence | None, summary: dict[str, Any]) -> Path:
    """Writes weights.pt, model.json, model.py, load_example.py and result.json; the path of the weights.

    Raises: Superseded where a newer attempt runs; OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fence is None:
        return _write(training, folder, summary)
    with fence.publishing():
        return _write(training, folder, summary)


def _write(training: Training, folder: Path, summary: dict[str, Any]) -> Path:
    weights = folder / "weights.pt"
    aside = folder / ".weights.pt.tmp"
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in training.net.state_dict().items()}
    torch.save(plain, aside)
    replace(weights, aside.read_bytes(), sync=True)
    aside.unlink()
    recipe, scaling = training.config.config, training.data.scaling
    about = {
        "class": "DigitNet",
        "arguments": {
            "width": recipe.model.width,
            "size": training.data.train_images.shape[-1],
            "classes": CLASSES,
        },
        "data": recipe.data,
        "maxValue": scaling.max_value,
        "mean": scaling.mean,
        "std": scaling.std,
        "accuracy": training.tally.accuracy,
        "splitDigest": training.data.split_digest,
    }
    replace_json(folder / "model.json", about, sync=True)
    replace(folder / "model.py", Path(digit_net.__file__).read_bytes(), sync=True)
    replace(folder / "load_example.py", _LOAD.encode(), sync=True)
    result = {**summary, "weights": str(weights), "steps": training.cursor.step, "torch": torch.__version__}
    replace(folder / "result.json", json.dumps(result, indent=1).encode(), sync=True)
    return weights
