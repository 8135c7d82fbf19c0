"""The OpenAPI document says what people need who read it: texts for everything, one source for them, errors by code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.spec.crd.definition import DEFINITIONS, custom_resource
from stoker_api.declared_problems import ANYWHERE, problems_of
from stoker_api.problems import ProblemCode
from stoker_api.routes import api_routes, websocket_routes

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
NAMES = {"Queue": "QueueWithUsage"}
"""Kinds that answers hold in another shape."""
OPERATIONS = [one for item in DOCUMENT["paths"].values() for one in item.values()]


def test_operations_have_short_ids_of_their_own_and_a_summary():
    ids = [one["operationId"] for one in OPERATIONS]
    assert len(set(ids)) == len(ids)
    for one in OPERATIONS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", one["operationId"])
        assert 0 < len(one["summary"]) <= 110 and one["description"].startswith(one["summary"]), one["operationId"]
        assert len(one["tags"]) == 1


def test_everything_that_has_a_name_is_described():
    for name, schema in SCHEMAS.items():
        for field, one in schema.get("properties", {}).items():
            assert one.get("description"), f"{name}.{field}"
    for one in OPERATIONS:
        for parameter in one.get("parameters", ()):
            assert parameter.get("description"), f"{one['operationId']}: {parameter['name']}"


def fields(schema: dict[str, Any], crd: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Path, what the document says of a field, and what its CustomResourceDefinition says."""
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    for option in schema.get("anyOf", ()):
        yield from fields(option, crd, path)
    for name, below in crd.get("properties", {}).items():
        if name in schema.get("properties", {}):
            one = schema["properties"][name]
            yield f"{path}.{name}", one["description"], below["description"]
            yield from fields(one, below, f"{path}.{name}")
    if "items" in crd and "items" in schema:
        yield from fields(schema["items"], crd["items"], f"{path}[]")


def test_fields_of_spec_and_status_have_the_texts_of_kubectl_explain():
    met = []
    for definition in DEFINITIONS:
        root = custom_resource(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in root["properties"].keys() & {"spec", "status"}:
            name = NAMES.get(definition.kind.kind, definition.kind.kind)
            if name not in SCHEMAS:
                continue  # no route has it
            schema = SCHEMAS[name]["properties"][part]
            for path, text, crds in fields(schema, root["properties"][part], f"{definition.kind}.{part}"):
                assert crds.startswith(text), f"{path}: {text!r}, and kubectl explain says {crds!r}"
                met.append(path)
    assert "TrainingJob.spec.trainer.command" in met and "TrainingJob.status.attempts[].workers[].exitCode" in met
    assert len(met) > 200


def test_every_code_stands_at_an_operation():
    """A code that no operation declares is none that clients can look out for, or of sessions alone."""
    declared = {code for route in api_routes() for code in problems_of(route)} | set(ANYWHERE)
    assert websocket_routes()
    of_sessions = {code for code in ProblemCode if "Session" in code} | {ProblemCode.UPGRADE_REQUIRED}
    assert set(ProblemCode) - declared - of_sessions == {ProblemCode.METHOD_NOT_ALLOWED}
    for route in api_routes():
        if route.include_in_schema:
            for code in problems_of(route):
                for method in route.methods - {"HEAD"}:
                    responses = DOCUMENT["paths"][route.path_format][method.lower()]["responses"]
                    assert f"{code}: " in responses[str(code.status)]["description"]


async def test_it_is_served_to_all_and_kept(world):
    answer = await world.client.get("/openapi.json")
    assert answer.status_code == 200 and answer.headers["content-encoding"] == "gzip"
    assert answer.json() == DOCUMENT
    assert "set-cookie" not in answer.headers
