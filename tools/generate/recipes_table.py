"""The tables of docs/recipes.md: every setting of every recipe, its values, its default and what it is for.

Called by tools/generate/docs.py. Descriptions are the docstrings of `stoker.spec.recipes`, bounds its JSON schema's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from stoker.spec import descriptions
from stoker.spec.crd.reference import cell
from stoker.spec.recipes import RECIPES

HEAD = "| setting | values | default | what |\n|---|---|---|---|"


@dataclass(frozen=True)
class Setting:
    values: str
    default: str
    what: str


def tables() -> str:
    """What all recipes have first, then each one's own."""
    settings = {name: dict(_settings(model)) for name, model in RECIPES.items()}
    paths = [path for recipe in settings.values() for path in recipe]
    common = [path for path in dict.fromkeys(paths) if paths.count(path) == len(settings)]
    alike = [path for path in common if len({(of[path].values, of[path].what) for of in settings.values()}) == 1]
    lines = [
        "## All recipes\n",
        HEAD,
        *(
            _row(path, settings["gpt"][path], _defaults({name: of[path] for name, of in settings.items()}))
            for path in alike
        ),
    ]
    for name, of in settings.items():
        lines += [f"\n## {name}\n", f"{descriptions.of_class(RECIPES[name])}\n", HEAD]
        lines += [_row(path, setting, setting.default) for path, setting in of.items() if path not in alike]
    return "\n".join(lines) + "\n"


def _row(path: str, setting: Setting, default: str) -> str:
    return f"| `{path}` | {setting.values} | {default} | {setting.what} |"


def _defaults(of: dict[str, Setting]) -> str:
    """The commonest, and whose is another."""
    every = [setting.default for setting in of.values()]
    usual = max(dict.fromkeys(every), key=every.count)
    others = [f"{name}: {setting.default}" for name, setting in of.items() if setting.default != usual]
    return "; ".join([usual, *others])


def _settings(model: type[BaseModel]) -> Iterator[tuple[str, Setting]]:
    schema = model.model_json_schema(by_alias=True)
    yield from _of_model(model, schema, schema["$defs"], "")


def _of_model(
    model: type[BaseModel], schema: dict[str, Any], parts: dict[str, Any], under: str
) -> Iterator[tuple[str, Setting]]:
    described = descriptions.of_fields(model)
    for name, field in model.model_fields.items():
        path = f"{under}{field.alias or name}"
        part = _resolved(schema["properties"][field.alias or name], parts)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _of_model(inner, part, parts, f"{path}.")
        else:
            default = json.loads(model.model_construct().model_dump_json(include={name}))[name]
            yield (
                path,
                Setting(_values(part), f"`{json.dumps(default).strip(chr(34))}`", cell(described.get(name, ""))),
            )


def _resolved(part: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in part:
        part = next(one for one in part["anyOf"] if one.get("type") != "null")
    if "$ref" in part:
        return parts[part["$ref"].rpartition("/")[2]]  # type: ignore[no-any-return]
    return part


def _values(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if part["type"] == "boolean":
        return "`true`, `false`"
    if part["type"] == "string":
        return "text"
    bounds = [
        f"{label} {part[name]:,.12g}"
        for name, label in (
            ("exclusiveMinimum", "over"),
            ("minimum", "from"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
        )
        if name in part
    ]
    return " ".join(["whole number" if part["type"] == "integer" else "number", *bounds])
