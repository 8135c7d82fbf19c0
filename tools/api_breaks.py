"""What of the api's `v1` has been broken: `python -m tools.api_breaks`. `--release` keeps the document as released.

Compares `docs/openapi.json` with `docs/openapi-released.json`, which holds what clients of the newest release may rely
on (its shapes, without texts and examples). A break that is wanted stands in docs/api.md, under "Compatibility", as
this prints it. A test runs it.

Rules: paths, operations, parameters, fields, media types and enum values stay; what requests may hold never gets less,
what answers always hold never gets less, and no value in them gets a type that it did not have. Additions are allowed:
optional fields and parameters, new values in answers ("or what a newer version says").
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.generate import json_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
RELEASED = DOCS / "openapi-released.json"
TEXTS = {"description", "summary", "example", "examples", "title", "tags", "info"}
MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
Json = dict[str, Any]


def breaks(old: Json, new: Json) -> list[str]:
    """What clients of `old` can't do any more, each in a line."""
    found: list[str] = []
    for path, item in old["paths"].items():
        for method, operation in item.items():
            name = f"{method.upper()} {path}"
            now = new["paths"].get(path, {}).get(method)
            found += (
                [f"{name} is gone"]
                if now is None
                else (f"{name}: {one}" for one in _operation(operation, now, old, new))
            )
    return found


def _operation(old: Json, new: Json, was: Json, now: Json) -> Iterator[str]:
    if old["operationId"] != new["operationId"]:
        yield f"its operation id is {new['operationId']}, not {old['operationId']}"
    if new["security"] and not old["security"]:
        yield "it needs a token"
    yield from _parameters(old.get("parameters", []), new.get("parameters", []), was, now)
    body, new_body = old.get("requestBody"), new.get("requestBody")
    if new_body is not None and new_body.get("required") and (body is None or not body.get("required")):
        yield "its body is required"
    for media_type, content in body["content"].items() if body is not None else ():
        if new_body is None or media_type not in new_body["content"]:
            yield f"its body can't be {media_type}"
        else:
            yield from _Compared(was, now).taken(content["schema"], new_body["content"][media_type]["schema"], "body")
    for status, response in old["responses"].items():
        if status.startswith("2"):
            yield from _response(status, response, new["responses"].get(status), was, now)


def _parameters(old: list[Json], new: list[Json], was: Json, now: Json) -> Iterator[str]:
    before = {(one["in"], one["name"]): one for one in old}
    after = {(one["in"], one["name"]): one for one in new}
    for key, one in before.items():
        if key not in after:
            yield f"its {' parameter '.join(key)} is gone"
        else:
            yield from _Compared(was, now).taken(one["schema"], after[key]["schema"], " parameter ".join(key))
    for key, one in after.items():
        if one.get("required") and not before.get(key, {}).get("required"):
            yield f"its {' parameter '.join(key)} is required"


def _response(status: str, old: Json, new: Json | None, was: Json, now: Json) -> Iterator[str]:
    if new is None:
        yield f"it never answers {status}"
        return
    for media_type, content in old.get("content", {}).items():
        if media_type not in new.get("content", {}):
            yield f"{status} is not {media_type}"
        elif "schema" in content:
            yield from _Compared(was, now).given(
                content["schema"], new["content"][media_type].get("schema", {}), status
            )


class _Compared:
    """One schema of each document, down to its fields; a pair of components is compared once."""

    def __init__(self, was: Json, now: Json) -> None:
        self._was, self._now = was, now
        self._seen: set[tuple[str, str]] = set()

    def taken(self, old: Json, new: Json, at: str) -> Iterator[str]:
        """Of what a client sends: all that was taken is taken."""
        for one, others in self._pairs(old, new):
            if not others:
                yield f"{at} can't be of type {_kind(one)}"
                continue
            other = others[0]
            for limit in (*MOST, *LEAST):
                less = limit in other and (
                    limit not in one or (other[limit] < one[limit] if limit in MOST else other[limit] > one[limit])
                )
                if less:
                    yield f"{at} has a {limit} of {other[limit]}, not {one.get(limit, 'none')}"
            if "pattern" in other and other["pattern"] != one.get("pattern"):
                yield f"{at} has the pattern {other['pattern']}, not {one.get('pattern', 'none')}"
            if other.get("uniqueItems") and not one.get("uniqueItems"):
                yield f"{at} must hold each item once"
            yield from _values(one, other, at)
            for field in sorted({*other.get("required", ())} - {*one.get("required", ())}):
                yield f"{at}.{field} is required"
            for field, schema in one.get("properties", {}).items():
                if field in other.get("properties", {}):
                    yield from self.taken(schema, other["properties"][field], f"{at}.{field}")
                elif other.get("additionalProperties") is False:
                    yield f"{at}.{field} is gone"
            yield from self._inside(self.taken, one, other, at)

    def given(self, old: Json, new: Json, at: str) -> Iterator[str]:
        """Of what a client gets: all that it relied on is there."""
        for other, ones in self._pairs(new, old, back=True):
            if not ones:
                yield f"{at} may be of type {_kind(other)}"
                continue
            one = ones[0]
            yield from _values(one, other, at)
            for field, schema in one.get("properties", {}).items():
                if field not in other.get("properties", {}):
                    yield f"{at}.{field} is gone"
                    continue
                if field in one.get("required", ()) and field not in other.get("required", ()):
                    yield f"{at}.{field} may be absent"
                yield from self.given(schema, other["properties"][field], f"{at}.{field}")
            yield from self._inside(self.given, one, other, at)

    def _inside(self, compare: Any, one: Json, other: Json, at: str) -> Iterator[str]:
        for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(one.get(key), dict) and isinstance(other.get(key), dict):
                yield from compare(one[key], other[key], at + mark)

    def _pairs(self, left: Json, right: Json, *, back: bool = False) -> Iterator[tuple[Json, list[Json]]]:
        """Each form of `left` with those of `right` of its kind. `back`: `left` is of the new document."""
        names = left.get("$ref", ""), right.get("$ref", "")
        if all(names):
            if names in self._seen:
                return
            self._seen.add(names)
        documents = (self._now, self._was) if back else (self._was, self._now)
        others = _forms(right, documents[1])
        for one in _forms(left, documents[0]):
            yield (
                one,
                [other for other in others if not _kind(other) or _kind(one) in (_kind(other), "")]
                or [other for other in others if _kind(one) == "integer" and _kind(other) == "number"],
            )


def _forms(schema: Json, document: Json) -> list[Json]:
    """What it may be, none of them a reference or a choice."""
    if "$ref" in schema:
        return _forms(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    choice = schema.get("anyOf") or schema.get("oneOf")
    if not choice:
        return [schema]
    forms = [form for one in choice for form in _forms(one, document)]
    enums = [form for form in forms if "enum" in form]
    if len(enums) > 1:  # a value of either
        both = {**enums[0], "enum": [value for form in enums for value in form["enum"]]}
        return [both, *(form for form in forms if "enum" not in form)]
    return forms


def _kind(schema: Json) -> str:
    return str(schema.get("type") or ("string" if {"enum", "const"} & schema.keys() else ""))


def _values(one: Json, other: Json, at: str) -> Iterator[str]:
    """Values of an enum that are gone."""
    if one.get("enum") or "const" in one:
        left = other.get("enum") or ([other["const"]] if "const" in other else None)
        for value in one.get("enum") or [one["const"]]:
            if left is not None and value not in left:
                yield f"{at} can't be {value!r}"
    elif "enum" in other or "const" in other:
        yield f"{at} has values of its own: {other.get('enum') or other['const']}"


def shapes(value: Any, *, names: bool = False) -> Any:
    """A document without its texts. `names`: the keys of `value` are names of fields or of components."""
    if isinstance(value, list):
        return [shapes(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: shapes(one, names=key in ("properties", "schemas", "paths") and not names)
        for key, one in value.items()
        if names or key not in TEXTS
    }


def _slim(document: Json) -> Json:
    for item in document["paths"].values():
        for operation in item.values():
            operation["responses"] = {status: one for status, one in operation["responses"].items() if status[0] == "2"}
    return document


def accepted(text: str) -> set[str]:
    """The breaks that docs/api.md lists as wanted."""
    return set(
        re.findall(r"^\| `(.+?)` \| .* \|$", text.partition("## Compatibility")[2].partition("\n## ")[0], re.MULTILINE)
    )


def unwanted() -> list[str]:
    old, new = (json.loads(path.read_text()) for path in (RELEASED, DOCS / "openapi.json"))
    wanted = accepted((DOCS / "api.md").read_text())
    return [one for one in breaks(old, new) if one not in wanted]


if __name__ == "__main__":
    if "--release" in sys.argv:
        RELEASED.write_text(json_text.text(_slim(shapes(json.loads((DOCS / "openapi.json").read_text())))) + "\n")
    found = unwanted()
    print("\n".join(found) or "v1 takes and answers all that the released one does")
    sys.exit(1 if found else 0)
