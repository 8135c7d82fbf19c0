"""Structural schemas (Kubernetes "Specify a structural schema") from Pydantic models, by walking their fields.

What a user writes keeps its bounds, forms, enums and CEL rules; quantities are int-or-string. A status has types and
required fields only, no bounds and no enums (their values stand in the description), so that a newer operator can write
its status under an older definition, where fields that are not known yet are pruned. Null is never allowed: the API
server takes a null for absent.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bounds
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from stoker.spec import descriptions
from stoker.spec.markers import Distinct, Form, Keyed
from stoker.spec.meta import ApiModel
from stoker.spec.quantity import QUANTITY

from . import cel, rules

Schema = dict[str, Any]


@dataclass(frozen=True)
class Use:
    """How a model is used."""

    status: bool = False
    freeze: bool = False
    """The API server writes the defaults into every object, where they stay, and looks at a value only as it comes: for
    specs that can't change anyway."""
    has_old: bool = True
    """The API server knows which value it was before: not within lists without a key."""

    @property
    def once(self) -> bool:
        return self.freeze and self.has_old


def of_model(model: type[BaseModel], use: Use) -> Schema:
    """The schema of an object with the model's fields."""
    schema: Schema = {"type": "object"}
    described = descriptions.of_class(model)
    if described:
        schema["description"] = described
    properties = {info.alias or name: _of_field(model, name, info, use) for name, info in model.model_fields.items()}
    if required := [info.alias or name for name, info in model.model_fields.items() if info.is_required()]:
        schema["required"] = required
    if properties:
        schema["properties"] = properties
    return schema if use.status else _with_rules(schema, rules.of_model(model), use)


def _of_field(model: type[BaseModel], name: str, info: FieldInfo, use: Use) -> Schema:
    if rules.is_mutable(model, name):
        use = replace(use, has_old=False)
    schema = of_type(info.annotation, info.metadata, use)
    default = None if info.is_required() else _plain(info.get_default(call_default_factory=True))
    schema["description"] = _described(model, name, schema, default, use)
    if use.freeze and default is not None:
        schema["default"] = {} if schema.get("type") == "object" else default  # the fields have their own
    if not use.status:
        _with_rules(schema, rules.of_field(model, name), use)
    return dict(sorted(schema.items(), key=lambda entry: entry[0] != "description"))


def of_type(annotation: Any, marks: Iterable[Any], use: Use) -> Schema:
    """The schema of a value. `marks` are what `Annotated` holds beside the type, those of a field included."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return of_type(args[0], [*_flat(args[1:]), *marks], use)
    if origin in (Union, types.UnionType):
        (only,) = (arg for arg in args if arg is not type(None))
        return of_type(only, marks, use)
    marks = list(_flat(marks))
    if origin is tuple:
        kind = _list_type(marks)
        has_old = use.has_old and kind["x-kubernetes-list-type"] == "map"
        schema = {"type": "array", "items": of_type(args[0], (), replace(use, has_old=has_old)), **kind}
    elif origin in (dict, Mapping):
        schema = _of_map(args[0], args[1], use)
    elif origin is Literal:
        schema = {"type": "string", "enum": list(args)}
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return of_model(annotation, use)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        schema = {"type": "string", "enum": [member.value for member in annotation]}
    else:
        schema = dict(_PLAIN[annotation])
        if annotation is datetime and not use.status:
            schema["maxLength"] = _LONGEST_TIME
    if not use.status:
        for mark in marks:
            _mark(schema, mark, use)
    return schema


_LONGEST_TIME = 64
_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
}


def _of_map(key: Any, value: Any, use: Use) -> Schema:
    if value is JsonValue:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema: Schema = {"type": "object", "additionalProperties": of_type(value, (), use)}
    if get_origin(key) is Annotated and not use.status:
        of_keys = of_type(key, (), use)
        marks = list(_flat(get_args(key)[1:]))
        texts = [rule for mark in marks if isinstance(mark, Form) for rule in rules.of_text(mark)]
        _with_rules(schema, cel.of_keys(of_keys.get("minLength"), of_keys.get("maxLength"), texts), use)
    return schema


def _mark(schema: Schema, mark: Any, use: Use) -> None:
    """Write one bound or form into the schema of a value."""
    sized = {"string": "Length", "array": "Items", "object": "Properties"}.get(schema.get("type", "string"))
    match mark:
        case bounds.MinLen():
            schema[f"min{sized}"] = mark.min_length
        case bounds.MaxLen():
            schema[f"max{sized}"] = mark.max_length
        case bounds.Ge():
            schema["minimum"] = mark.ge
        case bounds.Le():
            schema["maximum"] = mark.le
        case bounds.Gt():
            schema |= {"minimum": mark.gt, "exclusiveMinimum": True}
        case bounds.Lt():
            schema |= {"maximum": mark.lt, "exclusiveMaximum": True}
        case Form():
            schema["pattern"] = mark.anchored
            if mark is QUANTITY:  # people write `cpu: 2`
                del schema["type"]
                schema |= {"x-kubernetes-int-or-string": True, "minimum": 0}
            _with_rules(schema, [rule.on("self") for rule in rules.of_text(mark)], use)


def _list_type(marks: list[Any]) -> Schema:
    for mark in marks:
        if isinstance(mark, Keyed):
            return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [mark.key]}
        if isinstance(mark, Distinct):
            return {"x-kubernetes-list-type": "set"}
    return {"x-kubernetes-list-type": "atomic"}


def _described(model: type[BaseModel], name: str, schema: Schema, default: Any, use: Use) -> str:
    """The field's own description, else its class's; then its values (where no enum says them) and its default."""
    parts = [descriptions.of_field(model, name) or schema.get("description", "")]
    if use.status and "enum" in schema:
        parts.append(f"One of {', '.join(filter(None, schema.pop('enum')))}, or what a newer version says.")
    if use.status and "enum" in schema.get("items", {}):
        del schema["items"]["enum"]
    if not use.status and default not in (None, "", [], {}) and not isinstance(default, dict):
        parts.append(f"Default: {str(default).lower() if isinstance(default, bool) else default}.")
    return " ".join(parts)


def _with_rules(schema: Schema, more: Iterable[cel.Rule], use: Use) -> Schema:
    if dumped := [rule.dump(once=use.once) for rule in more]:
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", ()), *dumped]
    return schema


def _plain(value: Any) -> Any:
    """A default as JSON."""
    if isinstance(value, ApiModel):
        return value.dump()
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _flat(marks: Iterable[Any]) -> Iterable[Any]:
    """The marks themselves, those inside `Field(…)` included."""
    for mark in marks:
        if isinstance(mark, FieldInfo):
            yield from mark.metadata
        else:
            yield mark
