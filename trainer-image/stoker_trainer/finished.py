"""Owns what is done with the output of a finished training: its weights begin another one, are measured again, or
predict. Called by `main`.
"""

from __future__ import annotations

import pickle
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from .config import TrainerConfig
from .distributed import Place, Ranks
from .errors import BadConfig
from .evaluate import evaluate
from .training import Training, device_for, prepare_torch, set_up, share_start

WEIGHTS = "weights.pt"


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The state_dict in `path`, a file or an output folder. Loading runs no code.

    Raises: BadConfig.
    """
    file = path / WEIGHTS if path.is_dir() else path
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise BadConfig(f"{file} can't be read as weights: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise BadConfig(f"{file} holds no state_dict (names and tensors)")
    return found


def take_weights(net: nn.Module, found: Mapping[str, torch.Tensor], where: Path, *, partly: bool = False) -> list[str]:
    """Copies `found` into `net`; what did not fit, which only `partly` allows.

    Raises: BadConfig, naming what does not fit; `net` is then unchanged.
    """
    live = net.state_dict()
    faults = [f"{name} is missing there" for name in live if name not in found]
    faults += [f"{name} is unknown here" for name in found if name not in live]
    faults += [
        f"{name} is {tuple(found[name].shape)} there, {tuple(tensor.shape)} here"
        for name, tensor in live.items()
        if name in found and found[name].shape != tensor.shape
    ]
    fitting = [name for name in live if name in found and found[name].shape == live[name].shape]
    if (faults and not partly) or not fitting:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        hint = "; --init-partly takes what fits" if fitting else ""
        raise BadConfig(f"the weights of {where} do not fit this model: {'; '.join(faults[:5])}{more}{hint}")
    for name in fitting:
        live[name].copy_(found[name])
    return faults


def begin_with(training: Training, path: Path, *, partly: bool) -> list[str]:
    """The training's first weights are those of `path`, on all ranks; what did not fit. All ranks call it.

    Raises: BadConfig on rank 0.
    """
    faults = []
    if training.ranks.rank == 0:
        faults = take_weights(training.net, read_weights(path), path, partly=partly)
    share_start(training)
    return faults


def measure(config: TrainerConfig, weights: Path, env: Mapping[str, str]) -> dict[str, float]:
    """The recipe's metrics of `weights` on the test samples.

    Raises: BadConfig.
    """
    device = device_for(env, Place())
    prepare_torch(env, config, device)
    training = set_up(config, device, Ranks(Place(), device, config.config.deterministic))
    take_weights(training.net, read_weights(weights), weights)
    training.average = None
    return evaluate(training, lambda: None)


def predictions(folder: Path, inputs: Sequence[str]) -> Iterator[str]:
    """What the model in `folder` makes of each input, by the program that stands beside its weights.

    Raises: BadConfig where the folder is no output of a training, or an input does not suit its model.
    """
    program = folder / "load_example.py"
    if not program.is_file():
        raise BadConfig(f"{folder} is no output of a finished training: it has no {program.name}")
    sys.path.insert(0, str(folder))
    predict = runpy.run_path(str(program))["predict"]
    for given in inputs:
        try:
            yield str(predict(given))
        except (OSError, ValueError, RuntimeError, IndexError) as error:
            raise BadConfig(f"{given!r} does not suit this model: {' '.join(str(error).split())[:300]}") from None
