"""Bad requests as a table: each a problem document that says what to do, and nothing stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.spec.job import TrainingJobSpec
from tests.support.examples import examples

JOBS = "/v1/projects/alpha/jobs"
COMMAND = {"command": ["python", "train.py"]}


def spec(**more: Any) -> dict[str, Any]:
    return {"spec": {"trainer": COMMAND, **more}}


@dataclass(frozen=True)
class Bad:
    says: str
    status: int
    code: str
    pointer: str | None
    body: Any
    hint: str = ""
    method: str = "POST"
    path: str = JOBS
    headers: dict[str, str] = field(default_factory=dict)


RECIPE = {"recipe": "image-classification"}
CASES = [
    Bad("no JSON", 400, "InvalidJson", "", b"{spec: 1}", "line 1, column 2"),
    Bad("empty body", 400, "InvalidJson", "", b"", "empty"),
    Bad("byte order mark", 400, "InvalidJson", "", b"\xef\xbb\xbf{}", "byte order mark"),
    Bad("UTF-16", 400, "InvalidJson", "", json.dumps(spec()).encode("utf-16"), "UTF-8"),
    Bad("a key twice", 400, "InvalidJson", "/spec/cpu", b'{"spec":{"cpu":"1","cpu":"2"}}', "twice"),
    Bad("NaN", 400, "InvalidJson", "", b'{"spec":{"cpu":NaN}}', "NaN"),
    Bad("infinite by size", 400, "InvalidJson", "/spec/cpu", b'{"spec":{"cpu":1e999}}', "finite"),
    Bad("integer over 64 bits", 400, "InvalidJson", "/spec/priority", b'{"spec":{"priority":99999999999999999999}}'),
    Bad("integer of 5,000 digits", 400, "InvalidJson", "", b'{"spec":' + b"9" * 5000 + b"}"),
    Bad("half a surrogate pair", 400, "InvalidJson", "/spec/env/A", b'{"spec":{"env":{"A":"\\ud800"}}}', "surrogate"),
    Bad("NUL in an argument", 400, "InvalidJson", "/spec/env/A", b'{"spec":{"env":{"A":"\\u0000"}}}', "NUL"),
    Bad("100,000 brackets", 400, "InvalidJson", None, b"[" * 100_000 + b"]" * 100_000, "nested"),
    Bad("40 levels", 400, "InvalidJson", None, b'{"a":' * 40 + b"1" + b"}" * 40, "nested"),
    Bad("a list", 422, "InvalidFields", "", [], "object"),
    Bad("no spec", 422, "InvalidFields", "/spec", {}, "required"),
    Bad("misspelt field", 422, "InvalidFields", "/spec/gpusPerWorkr", spec(gpusPerWorkr=1), "'gpusPerWorker'"),
    Bad(
        "misspelt recipe setting",
        422,
        "InvalidFields",
        "/spec/trainer/config/epoch",
        {"spec": {"trainer": {**RECIPE, "config": {"epoch": 3}}}},
        "'epochs'",
    ),
    Bad("a number as text", 422, "InvalidFields", "/spec/workers", spec(workers="2"), "integer"),
    Bad("a boolean as number", 422, "InvalidFields", "/spec/suspend", spec(suspend=1), "boolean"),
    Bad("a half worker", 422, "InvalidFields", "/spec/workers", spec(workers=1.5), "integer"),
    Bad("negative workers", 422, "InvalidFields", "/spec/workers", spec(workers=-1), "greater"),
    Bad("no quantity", 422, "InvalidFields", "/spec/memory", spec(memory="lots"), "16Gi"),
    Bad("no duration", 422, "InvalidFields", "/spec/stop/maxDuration", spec(stop={"maxDuration": "soon"}), "1h30m"),
    Bad("11 years", 422, "InvalidFields", "/spec/onFailure/hold", spec(onFailure={"hold": "4015d"}), "10 years"),
    Bad(
        "unknown recipe",
        422,
        "InvalidFields",
        "/spec/trainer",
        {"spec": {"trainer": {"recipe": "alexnet"}}},
        "there is:",
    ),
    Bad("reserved variable", 422, "InvalidFields", "/spec/env/RANK", spec(env={"RANK": "0"}), "set by Stoker"),
    Bad("~ and / in a pointer", 422, "InvalidFields", "/spec/a~1b~0c", spec(**{"a/b~c": 1}), "no field"),
    Bad("born cancelled", 422, "InvalidFields", "/spec/cancel", spec(cancel=True), "starts with"),
    Bad("born retried", 422, "InvalidFields", "/spec/retryGeneration", spec(retryGeneration=7), "starts with"),
    Bad("bad name", 422, "InvalidFields", "/metadata/name", {**spec(), "metadata": {"name": "My_Job"}}, "mnist-resnet"),
    Bad(
        "forged submitter",
        422,
        "InvalidFields",
        "/metadata/annotations/stoker.dev~1submitter",
        {**spec(), "metadata": {"annotations": {"stoker.dev/submitter": "root"}}},
        "set by Stoker",
    ),
    Bad(
        "forged label",
        422,
        "InvalidFields",
        "/metadata/labels/x.stoker.dev~1queue",
        {**spec(), "metadata": {"labels": {"x.stoker.dev/queue": "gold"}}},
        "set by Stoker",
    ),
    Bad("a status", 422, "InvalidFields", "/status", {**spec(), "status": {"phase": "Succeeded"}}, "no field"),
    Bad("other kind", 422, "InvalidFields", "/kind", {**spec(), "kind": "Pod"}, "TrainingJob"),
    Bad("other namespace", 422, "InvalidFields", "/metadata/namespace", {**spec(), "metadata": {"namespace": "beta"}}),
    Bad("unknown queue", 422, "UnknownQueue", "/spec/queue", spec(queue="gold"), "there is: default, small"),
    Bad("priority above the queue's", 422, "PriorityTooHigh", "/spec/priority", spec(queue="small", priority=11), "10"),
    Bad("more GPUs than any node has", 422, "NeverFits", "/spec/gpusPerWorker", spec(gpusPerWorker=64), "64"),
    Bad(
        "more than the queue's own limit",
        422,
        "NeverFits",
        "/spec/gpusPerWorker",
        spec(queue="small", gpusPerWorker=2),
        "most there is: 1",
    ),
    Bad("bad key", 422, "InvalidFields", "/idempotency-key", spec(), headers={"Idempotency-Key": "a b"}),
    Bad("misspelt dryRun", 422, "InvalidFields", "/dryrun", spec(), "parameter", path=JOBS + "?dryrun=true"),
    Bad("dryRun twice", 422, "InvalidFields", "/dryRun", spec(), "twice", path=JOBS + "?dryRun=true&dryRun=false"),
    Bad("YAML", 415, "UnsupportedMediaType", None, b"spec: {}", "YAML", headers={"Content-Type": "application/yaml"}),
    Bad("no media type", 415, "UnsupportedMediaType", None, b"{}", headers={"Content-Type": ""}),
    Bad("10 MB", 413, "BodyTooLarge", None, b"x" * 10_000_000, "1048576 bytes"),
    Bad("unknown route", 404, "NotFound", None, {}, "docs/api.md", path="/v1/jobs"),
    Bad("wrong method", 405, "MethodNotAllowed", None, {}, "GET", method="PUT", path=JOBS + "/one"),
    Bad("other's project", 404, "NotFound", None, spec(), "may not see", path="/v1/projects/beta/jobs"),
    Bad("limit 0", 422, "InvalidFields", "/limit", None, method="GET", path=JOBS + "?limit=0"),
    Bad(
        "foreign cursor", 422, "InvalidFields", "/cursor", None, "start again", method="GET", path=JOBS + "?cursor=abc"
    ),
    Bad("no phase", 422, "InvalidFields", "/phase", None, "Running", method="GET", path=JOBS + "?phase=Runing"),
]


async def send(world: Any, case: Bad) -> httpx.Response:
    how: dict[str, Any] = {"headers": {"Content-Type": "application/json", **case.headers}}
    if isinstance(case.body, bytes):
        how["content"] = case.body
    elif case.body is not None:
        how["content"] = json.dumps(case.body)
    return await world.call(case.method, case.path, **how)


def check(answer: httpx.Response, case: Bad) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (case.status, case.code), (case.says, problem)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == case.status and problem["title"] and problem["type"].startswith("https://stoker.dev/")
    assert problem["traceId"] == answer.headers["x-trace-id"]
    assert isinstance(problem["retryable"], bool)
    pointers = [error["pointer"] for error in problem["errors"]]
    if case.pointer is not None:
        assert case.pointer in pointers, problem
    text = problem["detail"] + "".join(error["detail"] for error in problem["errors"])
    assert case.hint in text, problem


async def test_bad_requests(served):
    for case in CASES:
        check(await send(served, case), case)
        assert await served.names() == [], case.says


async def test_a_chunked_body_meets_the_same_limit(served):
    sent = 0

    async def chunks():
        nonlocal sent
        for _ in range(64):
            sent += 65_536
            yield b" " * 65_536

    answer = await served.call("POST", JOBS, content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413 and answer.json()["code"] == "BodyTooLarge"
    assert sent == 64 * 65_536


async def test_all_faults_are_reported_at_once(world):
    answer = await world.submit(**spec(workers=0, cpu="x", nonsense=1))
    pointers = {error["pointer"] for error in answer.json()["errors"]}
    assert pointers == {"/spec/workers", "/spec/cpu", "/spec/nonsense"}


async def test_secrets_are_not_echoed(world):
    answer = await world.submit(**spec(env={"TOKEN": ["hunter2"], "PASSWORD": 12345678}))
    assert answer.status_code == 422
    assert "hunter2" not in answer.text and "12345678" not in answer.text


async def test_an_unexpected_error_is_logged_and_says_nothing_of_the_inside(world, caplog, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(world.services.submitter._checks._scheduler, "never_fits", broken)
    answer = await world.submit(**spec())
    assert answer.status_code == 500 and answer.json()["code"] == "InternalError" and answer.json()["retryable"]
    assert "secret" not in answer.text
    assert answer.json()["traceId"] in caplog.text and "the secret inside" in caplog.text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted(info.alias or name for name, info in TrainingJobSpec.model_fields.items())


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=3),
    meta=st.none() | JSON_VALUES,
    cut=st.integers(min_value=0, max_value=400),
)
async def test_no_body_is_an_internal_error(world, changes, meta, cut):
    body: dict[str, Any] = {"spec": {"trainer": COMMAND, **changes}}
    if meta is not None:
        body["metadata"] = meta
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    for content in (raw, raw[:cut]):
        headers = {"Content-Type": "application/json"}
        answer = await world.call("POST", JOBS + "?dryRun=true", content=content, headers=headers)
        assert answer.status_code in (200, 400, 422), answer.text


async def test_405_names_every_method_of_the_path(world):
    for path, methods in (
        (JOBS + "/one", "DELETE, GET, PATCH"),
        ("/v1/queues/default", "DELETE, GET, PUT"),
        ("/livez", "GET"),
    ):
        for method in ("OPTIONS", "POST"):
            answer = await world.call(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, methods)
