"""What the models' docstrings say: of classes, and of fields (the string below a field).

One source for `kubectl explain` (`crd`) and for the OpenAPI document. Reads the source of the classes, so it is for
documents, which are made once, and never for a request. Called by `crd` and, through `meta`, by Pydantic.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel


def of_class(model: type[BaseModel]) -> str:
    """The class's own docstring as prose, or nothing."""
    return _prose(model.__dict__.get("__doc__") or "")


@cache
def of_fields(model: type[BaseModel]) -> dict[str, str]:
    """Field → its docstring, those of base classes too."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _below_fields(base)
    return found


def of_field(model: type[BaseModel], name: str) -> str:
    """The field's own description, else that of the class that is its type."""
    return of_fields(model).get(name) or next(map(of_class, _classes(model.model_fields[name].annotation)), "")


def into_json_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """`json_schema_extra` of a model: its JSON schema says what its docstrings say."""
    schema.pop("description", None)
    if described := of_class(model):
        schema["description"] = described
    properties = schema.get("properties", {})
    for name, info in model.model_fields.items():
        shown = properties.get(info.serialization_alias or name, {})
        if "description" not in shown and (described := of_field(model, name)):
            shown["description"] = described


def _classes(annotation: Any) -> list[type[BaseModel]]:
    """The models that a value may be; not those that it holds."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for arg in get_args(annotation) for model in _classes(arg)]


def _below_fields(model: type[BaseModel]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = _prose(below.value.value)
    return found


def _prose(docstring: str) -> str:
    """Paragraphs on one line each, without the lines that are for developers (`Source:`)."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    kept = [" ".join(paragraph.split()).partition("Source: ")[0].strip() for paragraph in paragraphs]
    return "\n".join(paragraph for paragraph in kept if paragraph)
