"""Owns the command line: a config from a file, the environment, or a recipe's defaults and `--set`. Called by `main`.

The defaults stand in `stoker.spec.recipes` and nowhere else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import config as configs
from .errors import BadConfig

PRESETS = {name: ("image-classification", {"data": name}) for name in ("digits", "mnist5k")}
"""Names for a recipe with some of its settings."""
_REST: dict[str, Any] = {
    "precision": "auto",
    "stop": {"maxSteps": None, "target": None, "patience": None},
    "checkpoint": {"everySeconds": 60.0, "keep": 2},
}
_WHOLE = {  # what `--set` of one field makes of an absent rule
    "target": {"metric": "accuracy", "value": None, "mode": None},
    "patience": {"evaluations": None, "metric": "loss", "mode": None},
}


@dataclass(frozen=True)
class Request:
    config: str
    """JSON, complete."""
    dry_run: bool = False
    init_from: Path | None = None
    """Weights to begin with."""
    init_partly: bool = False
    extend: bool = False
    """A finished training goes on with more steps."""
    checkpoint_from: Path | None = None
    """Another training's checkpoints, to go on from."""
    checkpoint_step: int | None = None
    """Which of them; None: the newest."""


@dataclass(frozen=True)
class Prepare:
    kind: str
    source: Path
    out: Path
    size: int | None


@dataclass(frozen=True)
class Evaluate:
    config: str
    weights: Path


@dataclass(frozen=True)
class Predict:
    folder: Path
    inputs: tuple[str, ...]


def read(argv: list[str], env: Mapping[str, str]) -> Request | Prepare | Evaluate | Predict:
    """What is asked for.

    Raises: BadConfig; SystemExit where argparse finds a fault.
    """
    if argv[:1] in (["eval"], ["predict"]):
        return _of_output(argv[0], argv[1:])
    if argv[:1] == ["prepare"]:
        parser = argparse.ArgumentParser(prog="python -m stoker_trainer prepare", description="Packs data, once.")
        parser.add_argument(
            "kind",
            choices=["text", "pairs", "images"],
            help="text: every file below SOURCE, as bytes; pairs: a file of lines, each a text, a tab and its target; "
            "images: a folder with a sub-folder per class, an npz file, or cifar-10-python.tar.gz",
        )
        parser.add_argument("source", type=Path)
        parser.add_argument("out", type=Path, help="a new or empty folder; `data` of a recipe")
        parser.add_argument("--size", type=int, help="of a folder's images: all are scaled and cropped to this side")
        options = parser.parse_args(argv[1:])
        if options.kind != "images" and options.size is not None:
            parser.error("--size is for images")
        return Prepare(options.kind, options.source, options.out, options.size)
    parser = argparse.ArgumentParser(
        prog="python -m stoker_trainer",
        description="Trains one recipe; one process per rank.",
        epilog="`python -m stoker_trainer prepare text|pairs|images SOURCE OUT` packs data, once.",
    )
    defaults = configs.defaults()
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--config", type=Path, help="a JSON file (default: the variable STOKER_TRAINER_CONFIG)")
    where.add_argument("--recipe", choices=[*defaults, *PRESETS], help="with the recipe's defaults")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the recipe (model.size=10m) or of the rest (precision=bf16, stop.maxSteps=100)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print config, parameters, memory, FLOPs")
    parser.add_argument(
        "--init-from",
        type=Path,
        default=_path(env.get("STOKER_INIT_FROM")),
        metavar="PATH",
        help="begin with these weights: a file, or an output",
    )
    parser.add_argument(
        "--init-partly",
        action="store_true",
        default=env.get("STOKER_INIT_PARTLY") == "1",
        help="of --init-from take what fits, and list the rest",
    )
    parser.add_argument(
        "--checkpoint-from",
        type=Path,
        default=_path(env.get("STOKER_CHECKPOINT_FROM")),
        metavar="FOLDER",
        help="go on from the newest of these checkpoints of another training, into STOKER_CHECKPOINT_DIR",
    )
    parser.add_argument(
        "--checkpoint-step",
        type=int,
        default=env.get("STOKER_CHECKPOINT_FROM_STEP"),
        metavar="STEP",
        help="of --checkpoint-from take this one",
    )
    parser.add_argument(
        "--extend", action="store_true", help="go on with a finished training, for more steps or epochs"
    )
    options = parser.parse_args(argv)
    if options.init_partly and options.init_from is None:
        raise BadConfig("--init-partly works with --init-from")
    if options.checkpoint_step is not None and options.checkpoint_from is None:
        raise BadConfig("--checkpoint-step works with --checkpoint-from")
    if options.checkpoint_from is not None and options.init_from is not None:
        raise BadConfig("--checkpoint-from brings its own weights: leave --init-from out")
    rest = (
        options.dry_run,
        options.init_from,
        options.init_partly,
        options.extend,
        options.checkpoint_from,
        options.checkpoint_step,
    )
    if options.recipe is None:
        if options.set:
            raise BadConfig("--set works with --recipe; change the config itself")
        return Request(_text(options.config, env), *rest)
    name, changes = PRESETS.get(options.recipe, (options.recipe, {}))
    config = {"recipe": name, "config": defaults[name] | changes} | json.loads(json.dumps(_REST))
    for assignment in options.set:
        _set(config, assignment)
    return Request(json.dumps(config), *rest)


def _of_output(command: str, argv: list[str]) -> Evaluate | Predict:
    about = {"eval": "Measures weights on the test samples.", "predict": "Shows what a model makes of inputs."}
    parser = argparse.ArgumentParser(prog=f"python -m stoker_trainer {command}", description=about[command])
    parser.add_argument("output", type=Path, help="the output folder of a finished training")
    if command == "predict":
        parser.add_argument("input", nargs="+", help="a text, or the path of an array of images (.npy)")
        options = parser.parse_args(argv)
        return Predict(options.output, tuple(options.input))
    parser.add_argument("--weights", type=Path, default=Path("weights.pt"), help="another file, say best.pt")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a changed field, say data=/x"
    )
    options = parser.parse_args(argv)
    config = json.loads(_text(options.output / "config.json", {}))
    for assignment in options.set:
        _set(config, assignment)
    return Evaluate(json.dumps(config), options.output / options.weights)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _text(path: Path | None, env: Mapping[str, str]) -> str:
    if path is not None:
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"the config can't be read: {error}") from None
    text = env.get("STOKER_TRAINER_CONFIG")
    if not text:
        raise BadConfig("STOKER_TRAINER_CONFIG is not set, and no --config FILE or --recipe NAME was given")
    return text


def _set(config: dict[str, Any], assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    if not equals:
        raise BadConfig(f"--set {assignment}: write FIELD=VALUE")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    *parents, last = path.split(".")
    here: Any = config if path.split(".")[0] in config and path.split(".")[0] != "config" else config["config"]
    for part in parents:
        if here is config["stop"] and part in _WHOLE and here[part] is None:
            here[part] = dict(_WHOLE[part])
        here = here.get(part) if isinstance(here, dict) else None
    if not isinstance(here, dict) or last not in here:
        known = ", ".join(here) if isinstance(here, dict) else "nothing"
        raise BadConfig(f"--set {path}: no such field; known there: {known}")
    here[last] = value
