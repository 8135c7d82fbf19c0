"""The values one by one: path, type as text, default, documentation. Pure. Called by `text` and by the tests."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from .base import Leaf, Values
from .values import ChartValues


@dataclass(frozen=True)
class Value:
    """One value that has no values below it."""

    path: tuple[str, ...]
    annotation: Any
    default: Any
    """As JSON."""
    text: str

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def type(self) -> str:
        return _type_text(self.annotation)


@dataclass(frozen=True)
class Group:
    """An object of values; `text` is its own documentation."""

    path: tuple[str, ...]
    text: str


def walk() -> Iterator[Value | Group]:
    """Every value, in the order of the models, each group before what is in it."""
    yield from _below(ChartValues(), ())


def values() -> list[Value]:
    return [one for one in walk() if isinstance(one, Value)]


def _below(model: Values, path: tuple[str, ...]) -> Iterator[Value | Group]:
    for field, about in type(model).model_fields.items():
        here = (*path, about.alias or field)
        default = getattr(model, field)
        if isinstance(default, Values) and not isinstance(default, Leaf):
            yield Group(here, _own_text(type(default)))
            yield from _below(default, here)
        else:
            if not about.description:
                raise ValueError(f"{'.'.join(here)} has no documentation")
            yield Value(here, about.annotation, _plain(default), about.description)


def _own_text(model: type[Values]) -> str:
    """Of this class itself; the bases' are for readers of the code."""
    return (model.__dict__.get("__doc__") or "").strip()


def _plain(default: Any) -> Any:
    if isinstance(default, BaseModel):
        return default.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    return default


def _type_text(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _type_text(args[0])
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in args)
    if origin is list:
        return f"list of {_type_text(args[0])}s"
    if origin is dict:
        return "map"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_type_text(one) for one in args))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    return {str: "string", int: "integer", bool: "bool", float: "number"}[annotation]
