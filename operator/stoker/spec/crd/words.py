"""What the models' docstrings say, for `kubectl explain`: of classes, and of fields (the string below a field).

Reads the source of the classes, so it is for generating only.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

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
