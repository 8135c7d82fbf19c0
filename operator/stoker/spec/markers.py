"""Markers on a type for schema generators: the form of a text, lists that are sets or keyed by a name.

A mark and the validator beside it are made from the same pattern and sentence, so that the model, the OpenAPI document
and the CustomResourceDefinitions (`stoker.spec.crd`) say one thing. Never validates by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True)
class Form:
    """How a text is written, the same to Python and RE2; `says` is the sentence for one that is not."""

    pattern: re.Pattern[str]
    says: str

    @property
    def anchored(self) -> str:
        """The pattern for engines that search. (No form has an alternative outside of brackets.)"""
        return f"^{self.pattern.pattern}$"

    def fits(self, text: str) -> bool:
        return self.pattern.fullmatch(text) is not None

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "pattern": self.anchored}


@dataclass(frozen=True)
class Keyed:
    """A list of objects of which no two have the same value of `key`; the model's own validator holds it."""

    key: str


class Distinct:
    """A list that is a set."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "uniqueItems": True}


def repeated(values: Iterable[str]) -> str | None:
    """The first value that has been there before."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
