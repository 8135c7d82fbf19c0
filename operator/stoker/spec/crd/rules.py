"""What the API server holds by CEL (`x-kubernetes-validations`), and what it can't hold.

Each rule is the model's own, with the model's sentence: `tests/kube/test_crds_agree.py` runs one table through both.
Everything is bounded so that the server's estimate of a rule's cost passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from ..form import Form
from ..job import (
    MOUNT_PATH_SAYS,
    MUTABLE,
    OWN_PATHS,
    OWN_PATHS_SAYS,
    SUB_PATH_SAYS,
    DataVolume,
    RetryRule,
    Trainer,
    TrainingJobSpec,
)
from ..names import ENV_NAME, RESERVED_ENV, RESERVED_ENV_PREFIXES, SETTABLE_ENV
from ..outcome import POLICIES, Category
from ..quantity import DURATION, NOT_ZERO, QUANTITY, TOO_LARGE
from ..recipes import RECIPES
from ..runtime import CheckpointStore, Toleration


@dataclass(frozen=True)
class Rule:
    """One validation: a CEL expression over `self` (and `oldSelf`), and the sentence for what breaks it."""

    cel: str
    says: str
    field: str = ""
    """The field it is about, where that is not the one it stands at."""
    says_cel: str = ""
    """The sentence as an expression, where it names a value."""

    def dump(self) -> dict[str, Any]:
        dumped = {"rule": self.cel, "message": self.says}
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


def of_model(model: type[BaseModel]) -> Iterable[Rule]:
    yield from _OF_MODEL.get(model, ())
    if model is TrainingJobSpec:
        yield from _immutable()


def of_field(model: type[BaseModel], name: str) -> Iterable[Rule]:
    return _OF_FIELD.get((model, name), ())


def of_text(form: Form) -> list[TextRule]:
    """The form itself, in words (the pattern stands beside it for other readers), and what else holds for such a text."""
    text = "string({})" if form is QUANTITY else "{}"
    return [TextRule(f"{text}.matches({quoted(form.anchored)})", form.says), *_OF_TEXT.get(form, ())]


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


def _immutable() -> Iterable[Rule]:
    """A rule for each field of the spec that can't change. All defaults are frozen in the object, so equal is equal."""
    for name, info in TrainingJobSpec.model_fields.items():
        if name not in MUTABLE:
            field = info.alias or name
            yield Rule(
                _same(info.annotation, info.metadata, field, optional=_optional(info.annotation)),
                f"spec.{field} can't be changed once the job exists; submit a new job",
                field=field,
            )


def _same(annotation: Any, marks: Iterable[Any], path: str, *, optional: bool) -> str:
    """An expression that says that `path` is as it was; 2 and "2" are the same quantity."""
    old, new = f"oldSelf.{path}", f"self.{path}"
    if QUANTITY in (*marks, *_all_args(annotation)):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return " && ".join(
                _same(
                    info.annotation, info.metadata, f"{path}.{info.alias or name}", optional=_optional(info.annotation)
                )
                for name, info in annotation.model_fields.items()
            )
        old, new = f"string({old})", f"string({new})"
    same = f"{new} == {old}"
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})" if optional else same


def _optional(annotation: Any) -> bool:
    return type(None) in get_args(annotation)


def _all_args(annotation: Any) -> list[Any]:
    """Everything an annotation holds, down to the fields of models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [
            arg for info in annotation.model_fields.values() for arg in (*info.metadata, *_all_args(info.annotation))
        ]
    return [annotation, *(arg for part in get_args(annotation) if get_origin(annotation) for arg in _all_args(part))]


def _reserved() -> TextRule:
    prefixes = " || ".join(f"{{}}.startsWith({quoted(prefix)})" for prefix in RESERVED_ENV_PREFIXES)
    return TextRule(
        f"!({{}} in {_list(RESERVED_ENV)}) && (!({prefixes}) || {{}} in {_list(SETTABLE_ENV)})",
        "is set by Stoker; choose another name",
    )


def _list(texts: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(text) for text in sorted(texts)) + "]"


_OF_TEXT: dict[Form, list[TextRule]] = {
    QUANTITY: [
        TextRule(
            "!isQuantity(string({})) || quantity(string({})).isLessThan(quantity('9223372036854775807'))", TOO_LARGE
        )
    ],
    DURATION: [TextRule("{}.matches('[1-9]')", NOT_ZERO)],
    ENV_NAME: [_reserved()],
}

_WITH_RECIPE = "works with a recipe; with a command only the program itself can do it"
_PATH = "(has({0}.mountPath) ? {0}.mountPath : '/data/' + {0}.name)"
_OWN = " || ".join(
    f"(self + '/').startsWith({quoted(own + '/')}) || {quoted(own)}.startsWith(self + '/')" for own in OWN_PATHS
)

_OF_MODEL: dict[type[BaseModel], list[Rule]] = {
    TrainingJobSpec: [
        Rule(
            "!oldSelf.cancel || self.cancel || self.retryGeneration != oldSelf.retryGeneration",
            "spec.cancel can't be taken back; raise retryGeneration to run the job again",
            field="cancel",
        ),
        Rule(
            "self.retryGeneration >= oldSelf.retryGeneration",
            "spec.retryGeneration can only be raised",
            field="retryGeneration",
        ),
        Rule(
            "self.gpusPerWorker > 0 || (size(self.gpu.models) == 0 && !has(self.gpu.minMemory))",
            "gpu says which GPUs, but gpusPerWorker is 0; ask for at least one or leave gpu out",
            field="gpu",
        ),
        Rule("!has(self.trainer.command) || self.precision == 'auto'", f"precision {_WITH_RECIPE}", field="precision"),
        Rule(
            "!has(self.trainer.command) || !has(self.stop.maxSteps)",
            f"stop.maxSteps {_WITH_RECIPE}",
            field="stop.maxSteps",
        ),
        Rule(
            "!has(self.trainer.command) || !has(self.stop.target)", f"stop.target {_WITH_RECIPE}", field="stop.target"
        ),
    ],
    Trainer: [
        Rule("has(self.recipe) != has(self.command)", "give either recipe (with config) or command (with workingDir)"),
        Rule(
            "!has(self.recipe) || (!has(self.workingDir) && !has(self.image))",
            "workingDir and image belong to command; a recipe has its own",
        ),
        Rule(
            "has(self.recipe) || size(dyn(self.config)) == 0",
            "config belongs to recipe; give a command its settings as arguments or env",
            field="config",
        ),
        Rule(
            "!has(self.command) || (size(self.command) > 0 && self.command[0] != '')",
            "command must name a program",
            field="command",
        ),
    ],
    RetryRule: [
        Rule(
            f"!({quoted(category)} in self.on)",
            f"{category} can't be given retries: {POLICIES[category].says}",
            field="on",
        )
        for category in Category
        if not POLICIES[category].raisable
    ],
    CheckpointStore: [Rule("has(self.claim) != has(self.template)", "give either claim or template")],
    Toleration: [
        Rule(
            "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
            "a toleration without a key must have operator Exists",
        ),
        Rule(
            "!has(self.value) || self.value == '' || !has(self.operator) || self.operator != 'Exists'",
            "a toleration with operator Exists has no value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds belongs to effect NoExecute",
        ),
    ],
}

_OF_FIELD: dict[tuple[type[BaseModel], str], list[Rule]] = {
    (Trainer, "recipe"): [
        Rule(
            f"self in {_list(RECIPES)}",
            f"there is no such recipe; there is: {', '.join(sorted(RECIPES))}",
            says_cel=f"'there is no recipe \\'' + self + {quoted(chr(39) + '; there is: ' + ', '.join(sorted(RECIPES)))}",
        )
    ],
    (DataVolume, "mount_path"): [
        Rule(
            "self.startsWith('/') && !self.contains(':') && self.substring(1).split('/').all(p, !(p in ['', '.', '..']))",
            MOUNT_PATH_SAYS,
        ),
        Rule(f"!({_OWN})", OWN_PATHS_SAYS),
    ],
    (DataVolume, "sub_path"): [Rule("!self.startsWith('/') && !('..' in self.split('/'))", SUB_PATH_SAYS)],
    (TrainingJobSpec, "data"): [
        Rule(
            f"self.all(a, self.exists_one(b, {_PATH.format('a')} == {_PATH.format('b')}))",
            "two entries of data have the same mountPath",
        )
    ],
}
