"""The tables of docs/crds.md: what kubectl knows of each kind, every field of its spec, every rule; from the schemas.

Called by tools/generate/docs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.spec.quantity import DURATION

from .definition import DEFINITIONS, Definition, custom_resource

Schema = dict[str, Any]


def reference() -> str:
    return "\n".join(_kind(definition) for definition in DEFINITIONS)


def _kind(definition: Definition) -> str:
    version = custom_resource(definition)["spec"]["versions"][0]
    root: Schema = version["schema"]["openAPIV3Schema"]
    scope = "in a namespace" if definition.kind.namespaced else "cluster-scoped"
    columns = [f"{column.name} (wide)" if column.wide else column.name for column in definition.columns]
    lines = [
        f"### {definition.kind}\n",
        f"{root['description']}\n",
        f"`{definition.name}`, short {_codes(definition.short)}, {scope}, in {_codes(definition.categories)}. "
        f"Columns: {', '.join(columns)}."
        + (f" Field selectors: {_codes(path[1:] for path in definition.selectable)}." if definition.selectable else "")
        + "\n",
        "| field | type | what |\n|---|---|---|",
        *(
            f"| `{path}` | {_type(schema)} | {cell(schema['description'])} |"
            for path, schema in _fields(root["properties"]["spec"], "spec")
        ),
        "\n| what the API server refuses, by CEL | where |\n|---|---|",
        *(f"| {cell(says)} | {_codes(sorted(where))} |" for says, where in _rules(root).items()),
    ]
    return "\n".join(lines) + "\n"


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, part in schema.get("properties", {}).items():
        under = f"{path}.{name}"
        yield under, part
        yield from _fields(part, under)
        yield from _fields(part.get("items", {}), f"{under}[]")


def _rules(schema: Schema) -> dict[str, list[str]]:
    """Sentence → where it is said."""
    found: dict[str, dict[str, None]] = {}
    for path, part in [("", schema), ("spec", schema["properties"]["spec"]), *_with_items(schema)]:
        for rule in part.get("x-kubernetes-validations", ()):
            at = (path + rule.get("fieldPath", "")) or "metadata.name"
            found.setdefault(rule["message"].removeprefix(f"{at} "), {})[at] = None
    return {sentence: list(paths) for sentence, paths in found.items()}


def _with_items(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for path, part in _fields(schema["properties"]["spec"], "spec"):
        yield path, part
        for under in ("items", "additionalProperties"):
            if under in part:
                yield f"{path}[]", part[under]


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" if value else "empty" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = str(schema["type"])
    if kind == "array":
        return f"list of {_type(schema['items'])}, at most {schema['maxItems']}"
    if kind == "object" and "additionalProperties" in schema:
        return f"map to {_type(schema['additionalProperties'])}, at most {schema['maxProperties']}"
    if schema.get("pattern") == DURATION.anchored:
        return "duration"
    if kind in ("integer", "number"):
        above = "over " if schema.get("exclusiveMinimum") else ""
        return f"{kind}, {above}{schema['minimum']} to {schema['maximum']}"
    return kind


def _codes(texts: Any) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
