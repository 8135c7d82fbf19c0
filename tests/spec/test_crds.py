"""The definitions in helm/stoker/files/crds are those the models make, and are made as Kubernetes wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from stoker.spec.crd.definition import DEFINITIONS, Definition, custom_resource
from stoker.spec.job import TrainingJobSpec
from stoker.spec.meta import SpecModel
from tools.generate import crds

KINDS = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: str(definition.kind))


def test_the_files_are_up_to_date() -> None:
    behind = crds.stale(write=False)
    assert not behind, f"{', '.join(behind)} differ from the models: run `.venv/bin/python -m tools.generate.crds`"


def root(definition: Definition) -> dict[str, Any]:
    schema: dict[str, Any] = custom_resource(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    for under in ("items", "additionalProperties"):
        if under in schema:
            yield from nodes(schema[under], f"{path}[]")


@KINDS
def test_every_field_is_described_and_has_a_type(definition: Definition) -> None:
    for part in ("spec", "status"):
        for path, schema in nodes(root(definition)["properties"].get(part, {"type": "object"}), part):
            assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
            if not path.endswith("[]") and part in root(definition)["properties"]:
                assert schema["description"].strip().endswith((".", "`.", ")", "?")), f"{path}: {schema['description']}"
            assert not {"nullable", "anyOf", "oneOf", "$ref", "title"} & schema.keys(), path


@KINDS
def test_what_a_user_writes_is_bounded(definition: Definition) -> None:
    """Or the server's estimate of a rule's cost would have no end."""
    for path, schema in nodes(root(definition)["properties"]["spec"], "spec"):
        kind = schema.get("type")
        if kind == "string":
            assert "maxLength" in schema or "enum" in schema, path
        if kind == "array":
            assert "maxItems" in schema, path
        if kind == "object" and "additionalProperties" in schema:
            assert "maxProperties" in schema, path
        if kind == "integer":
            assert {"minimum", "maximum"} <= schema.keys(), path


@KINDS
def test_a_status_takes_what_a_newer_version_writes(definition: Definition) -> None:
    status = root(definition)["properties"].get("status", {"type": "object"})
    for path, schema in nodes(status, "status"):
        held = {"enum", "pattern", "maximum", "maxLength", "maxItems", "default", "x-kubernetes-validations"}
        assert not held & schema.keys(), path


def test_only_the_defaults_of_jobs_are_frozen() -> None:
    """A job's spec can't change, so its defaults must not; queues and runtimes follow the version that reads them."""
    for definition in DEFINITIONS:
        defaults = {
            path for path, schema in nodes(root(definition)["properties"]["spec"], "spec") if "default" in schema
        }
        assert bool(defaults) == definition.freeze
    spec = root(DEFINITIONS[0])["properties"]["spec"]
    frozen = {name: schema.get("default") for name, schema in spec["properties"].items()}
    made = TrainingJobSpec.model_validate({"trainer": {"command": ["x"]}}).model_dump(mode="json", by_alias=True)
    for name, default in frozen.items():
        if default != {} and name != "trainer":
            assert made[name] == default, name


def test_every_default_that_is_not_none_survives_a_dump() -> None:
    """`dump` leaves out None: a field whose None means something else than its default would change on the way."""

    def subclasses(model: type[SpecModel]) -> Iterator[type[SpecModel]]:
        for sub in model.__subclasses__():
            yield sub
            yield from subclasses(sub)

    for model in subclasses(SpecModel):
        for name, info in model.model_fields.items():
            default = None if info.is_required() else info.get_default(call_default_factory=True)
            if default is not None:
                assert type(None) not in get_args(info.annotation), f"{model.__name__}.{name}"
