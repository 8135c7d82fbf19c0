"""`v1` takes and answers what the released one did; and what the check for that finds, kind by kind."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tools.api_breaks import RELEASED, accepted, breaks, unwanted

OLD = json.loads(RELEASED.read_text())
JOBS = "/v1/projects/{project}/jobs"


def test_nothing_that_is_released_is_broken():
    assert unwanted() == [], "keep it, or write it into docs/api.md under Compatibility"


def schema(document: Any, name: str) -> Any:
    return document["components"]["schemas"][name]


def spec(document: Any) -> Any:
    return schema(document, "TrainingJobSpec")["properties"]


def submit(document: Any) -> Any:
    return document["paths"][JOBS]["post"]


def listed(document: Any, name: str) -> Any:
    return next(one for one in document["paths"][JOBS]["get"]["parameters"] if one["name"] == name)


BREAKS: dict[str, Callable[[Any], object]] = {
    "POST /v1/projects/{project}/jobs/{name}/cancel is gone": lambda new: new["paths"].pop(f"{JOBS}/{{name}}/cancel"),
    "DELETE /v1/projects/{project}/jobs/{name} is gone": lambda new: new["paths"][f"{JOBS}/{{name}}"].pop("delete"),
    "its operation id is send_job, not submit_job": lambda new: submit(new).update(operationId="send_job"),
    "GET /livez: it needs a token": lambda new: new["paths"]["/livez"]["get"].update(security=[{"token": []}]),
    "its query parameter queue is gone": lambda new: listed(new, "queue").update(name="queues"),
    "its query parameter queue is required": lambda new: listed(new, "queue").update(required=True),
    "query parameter sort can't be '-gpus'": lambda new: listed(new, "sort")["schema"]["enum"].remove("-gpus"),
    "query parameter limit has a maximum of 100, not 500": lambda new: listed(new, "limit")["schema"].update(
        maximum=100
    ),
    "its body can't be application/json": lambda new: submit(new)["requestBody"]["content"].pop("application/json"),
    "POST /v1/sign-in-tickets: its body is required": lambda new: new["paths"]["/v1/sign-in-tickets"]["post"].update(
        requestBody={"required": True, "content": {}}
    ),
    "body.spec.priority is gone": lambda new: spec(new).pop("priority"),
    "body.spec.priority can't be of type integer": lambda new: spec(new)["priority"].update(type="string"),
    "body.spec.workers has a maximum of 8, not 4096": lambda new: spec(new)["workers"].update(maximum=8),
    "body.spec.gpusPerWorker has a minimum of 1, not 0": lambda new: spec(new)["gpusPerWorker"].update(minimum=1),
    "body.spec.queue is required": lambda new: schema(new, "TrainingJobSpec")["required"].append("queue"),
    "body.spec.queue has the pattern ^q, not ": lambda new: spec(new)["queue"].update(pattern="^q"),
    "body.spec.precision can't be 'fp16'": lambda new: schema(new, "Precision")["enum"].remove("fp16"),
    "it never answers 201": lambda new: submit(new)["responses"].pop("201"),
    "200 is not text/event-stream": lambda new: new["paths"][f"{JOBS}/{{name}}/logs"]["get"]["responses"]["200"][
        "content"
    ].pop("text/event-stream"),
    "200.items[].status.attempt is gone": lambda new: schema(new, "TrainingJobStatus")["properties"].pop("attempt"),
    "200.nextCursor may be absent": lambda new: schema(new, "JobList")["required"].remove("nextCursor"),
    "200.items[].status.attempt may be of type null": lambda new: schema(new, "TrainingJobStatus")["properties"].update(
        attempt={"anyOf": [{"type": "integer"}, {"type": "null"}]}
    ),
    "200.items[].status.phase can't be 'Suspended'": lambda new: schema(new, "Phase")["enum"].remove("Suspended"),
}
ALLOWED: dict[str, Callable[[Any], object]] = {
    "an operation": lambda new: new["paths"].update({"/v1/new": copy.deepcopy(new["paths"]["/livez"])}),
    "a parameter": lambda new: new["paths"][JOBS]["get"]["parameters"].append(
        {"in": "query", "name": "new", "required": False, "schema": {"type": "string"}}
    ),
    "a field that may be left out": lambda new: spec(new).update(new={"type": "string"}),
    "a wider bound": lambda new: spec(new)["workers"].update(maximum=100_000),
    "another type that is taken": lambda new: new["paths"][JOBS]["get"]["parameters"][1]["schema"].update(
        anyOf=[{"type": "string"}, {"type": "integer"}]
    ),
    "a field of an answer": lambda new: schema(new, "JobList")["properties"].update(total={"type": "integer"}),
    "a value of an answer": lambda new: schema(new, "Phase")["enum"].append("Dreaming"),
    "an error": lambda new: submit(new)["responses"].update({"418": {"content": {}}}),
}


@pytest.mark.parametrize("line", BREAKS)
def test_a_break_is_found(line):
    new = copy.deepcopy(OLD)
    BREAKS[line](new)
    found = breaks(OLD, new)
    assert any(line in one for one in found), found


@pytest.mark.parametrize("what", ALLOWED)
def test_what_only_adds_is_none(what):
    new = copy.deepcopy(OLD)
    ALLOWED[what](new)
    assert new != OLD and breaks(OLD, new) == []


def test_a_break_that_is_wanted_is_written_down():
    table = "| break | instead |\n|---|---|\n| `GET /old is gone` | `GET /new`, since 0.2 |\n"
    text = f"## Compatibility\n\n{table}\n## Other\n| `x` | y |\n"
    assert accepted(text) == {"GET /old is gone"}
