"""Owns the trainer's reading of `STOKER_TRAINER_CONFIG`: plain dataclasses, complete, no defaults. Called by `main`.

The defaults and their meaning live in `stoker.spec.recipes`, the limits for users too; here only what would break the
trainer is checked. A field that is missing, unknown or of the wrong type is named with its path.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import BadConfig
from .recipes import RECIPES
from .settings import Settings, at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    metric: str
    """One that the recipe declares; set-up checks it."""
    value: float
    mode: Literal["max", "min"] | None
    """None: which way the recipe says is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    evaluations: int = at_least(1)
    metric: str
    mode: Literal["max", "min"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    max_steps: int | None = at_least(1)
    target: Target | None
    patience: Patience | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRule:
    every_seconds: float = at_least(0)
    keep: int = at_least(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    recipe: str
    config: Settings
    """Of the class that the recipe has in `RECIPES`."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"]
    stop: StopRule
    checkpoint: CheckpointRule


T = TypeVar("T")


def parse(text: str) -> TrainerConfig:
    """The config in `text` (JSON).

    Raises: BadConfig, naming the field.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadConfig(f"the trainer's config is not JSON: {error}") from None
    recipe = value.get("recipe") if isinstance(value, dict) else None
    settings = RECIPES[recipe].settings if isinstance(recipe, str) and recipe in RECIPES else None
    if settings is None and isinstance(value, dict) and "recipe" in value:
        raise BadConfig(f"recipe: expected one of {', '.join(RECIPES)}, got {_shown(recipe)}")
    return _read(TrainerConfig, value, "", config=settings)


def trajectory_of(text: str) -> dict[str, Any]:
    """The part of a parsed config that decides the course of training: a resume under another one is refused."""
    value = json.loads(text)
    return {
        "recipe": value["recipe"],
        "config": value["config"],
        "precision": value["precision"],
        "maxSteps": value["stop"]["maxSteps"],
    }


def completed(trajectory: Any) -> Any:
    """A saved trajectory, with the settings that its trainer did not know yet at their defaults."""
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("config"), dict):
        return trajectory
    return trajectory | {"config": _merged(defaults().get(str(trajectory.get("recipe")), {}), trajectory["config"])}


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    inner = {k: _merged(under[k], v) for k, v in over.items() if isinstance(v, dict) and isinstance(under.get(k), dict)}
    return under | over | inner


def defaults() -> dict[str, dict[str, Any]]:
    """Of each recipe its settings' defaults; `tools/generate/docs.py` writes the file from `stoker.spec.recipes`."""
    return json.loads(Path(__file__).with_name("defaults.json").read_text())  # type: ignore[no-any-return]


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """The paths at which two JSON values differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for key in keys for d in differences(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))]
    return [] if old == new else [f"{where}: {old!r} there, {new!r} now"]


def json_name(name: str) -> str:
    """camelCase, as the spec writes it."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _read(kind: type[T], value: Any, where: str, **kinds: Any) -> T:
    """`kinds` are types of fields that are known only now."""
    if not isinstance(value, dict):
        raise BadConfig(f"{where or 'the config'}: expected an object, got {_shown(value)}")
    hints = get_type_hints(kind) | kinds
    known: dict[str, Field[Any]] = {json_name(f.name): f for f in fields(kind)}  # type: ignore[arg-type]
    for name in value:
        if name not in known:
            raise BadConfig(f"{_join(where, name)}: unknown field; known here: {', '.join(known)}")
    out = {}
    for name, f in known.items():
        if name not in value:
            raise BadConfig(f"{_join(where, name)}: missing; the trainer takes a complete config and has no defaults")
        out[f.name] = _value(hints[f.name], value[name], _join(where, name))
        _check_limits(f, out[f.name], _join(where, name))
    return kind(**out)


def _value(kind: Any, value: Any, where: str) -> Any:
    if get_origin(kind) in (types.UnionType, Union):
        if value is None:
            return None
        (kind,) = (k for k in get_args(kind) if k is not type(None))
    if is_dataclass(kind):
        return _read(kind, value, where)  # type: ignore[arg-type]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise BadConfig(f"{where}: expected one of {', '.join(map(str, get_args(kind)))}, got {_shown(value)}")
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind is str and isinstance(value, str):
        return value
    expected = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
    raise BadConfig(f"{where}: expected {expected[kind]}, got {_shown(value)}")


def _check_limits(f: Field[Any], value: Any, where: str) -> None:
    at_least, below = f.metadata.get("at_least"), f.metadata.get("below")
    if value is None:
        return
    if at_least is not None and value < at_least:
        raise BadConfig(f"{where}: must be at least {at_least:g}, got {value}")
    if below is not None and value >= below:
        raise BadConfig(f"{where}: must be below {below:g}, got {value}")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
