"""Rules in CEL as `x-kubernetes-validations` has them, and the expressions that several rules are made of.

Knows the models' annotations, none of the models. Called by `rules`, `schema` and `definition`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stoker.spec.markers import Form
from stoker.spec.quantity import QUANTITY


@dataclass(frozen=True)
class Rule:
    """One validation: a CEL expression over `self` (and `oldSelf`), and the sentence for what breaks it."""

    cel: str
    says: str
    field: str = ""
    """The field it is about, where that is not the one it stands at."""
    says_cel: str = ""
    """The sentence as an expression, where it names a value."""

    def dump(self, *, once: bool = False) -> dict[str, Any]:
        """`once`: of a value that never changes, which is looked at as it comes only, not at each later write."""
        dumped: dict[str, Any] = {"rule": self.cel, "message": self.says}
        if once and "oldSelf" not in self.cel:
            dumped |= {"rule": f"oldSelf.hasValue() || ({self.cel})", "optionalOldSelf": True}
        if self.says_cel:
            dumped["messageExpression"] = self.says_cel
        if self.field:
            dumped["fieldPath"] = f".{self.field}"
        return dumped


@dataclass(frozen=True)
class TextRule:
    """A rule about a text, wherever it stands; `{}` is the text."""

    cel: str
    says: str

    def on(self, text: str) -> Rule:
        return Rule(self.cel.replace("{}", text), self.says)


def of_keys(shortest: int | None, longest: int | None, texts: Iterable[TextRule]) -> Iterable[Rule]:
    """Rules for the keys of a map: no schema can say them."""
    if shortest:
        texts = [TextRule(f"size({{}}) >= {shortest}", "a key is empty"), *texts]
    if longest:
        texts = [TextRule(f"size({{}}) <= {longest}", f"a key has more than {longest} characters"), *texts]
    for text in texts:
        holds = text.cel.replace("{}", "k")
        yield Rule(
            f"self.all(k, {holds})", text.says, says_cel=f"self.filter(k, !({holds}))[0] + {quoted(': ' + text.says)}"
        )


def named(longest: int, form: Form) -> Rule:
    """The object's own name: narrower than Kubernetes' rule."""
    name = "self.metadata.name"
    return Rule(f"size({name}) <= {longest} && {name}.matches({quoted(form.anchored)})", f"metadata.name {form.says}")


def quoted(text: str) -> str:
    """A CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(texts: Iterable[str]) -> str:
    """A CEL list of strings."""
    return "[" + ", ".join(quoted(text) for text in sorted(texts)) + "]"


def unchanged(annotation: Any, marks: Iterable[Any], path: str = "") -> str:
    """An expression that says that what is at self, or below it at `path`, is as it was, where it was and is; 2 and "2"
    are the same quantity."""
    old, new = f"oldSelf{path}", f"self{path}"
    if QUANTITY in (*marks, *_all_args(annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            each = " && ".join(
                _with_presence(f"{path}.{info.alias or name}", info) for name, info in annotation.model_fields.items()
            )
            return f"{new} == {old} || ({each})"
        old, new = f"string({old})", f"string({new})"
    return f"{new} == {old}"


def _with_presence(path: str, info: FieldInfo) -> str:
    """Defaults are looked at without the defaults of their own fields, so none is taken to be there."""
    same = unchanged(info.annotation, info.metadata, path)
    return f"has(self{path}) == has(oldSelf{path}) && (!has(self{path}) || {same})"


def is_optional(annotation: Any) -> bool:
    return type(None) in get_args(annotation)


def _all_args(annotation: Any) -> list[Any]:
    """Everything an annotation holds, down to the fields of models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [
            arg for info in annotation.model_fields.values() for arg in (*info.metadata, *_all_args(info.annotation))
        ]
    return [annotation, *(arg for part in get_args(annotation) if get_origin(annotation) for arg in _all_args(part))]
