"""Secrets of a project in both modes: set, listed and deleted with the caller's own rights; no answer has a value."""

from __future__ import annotations

import base64
import logging

import pytest

VALUE = "hf_" + "q7Zk" * 9
SECRETS = "/v1/projects/alpha/secrets"


async def put(world, where="hf/value", value=VALUE, **how):
    return await world.call("PUT", f"{SECRETS}/{where}", json={"value": value}, **how)


async def test_set_listed_deleted_and_never_shown(world, caplog):
    caplog.set_level(logging.DEBUG)
    made = await put(world)
    assert made.status_code == 201, made.text
    assert {**made.json(), "createdAt": "", "changedAt": ""} == {
        "name": "hf", "keys": ["value"], "createdAt": "", "changedAt": "",
    }  # fmt: skip
    again = await put(world, "hf/read.only", "another value")
    assert (again.status_code, again.json()["keys"]) == (200, ["read.only", "value"])
    await put(world, "wandb/value")
    listed = await world.call("GET", SECRETS)
    assert [(one["name"], one["keys"]) for one in listed.json()["items"]] == [
        ("hf", ["read.only", "value"]),
        ("wandb", ["value"]),
    ]
    assert (await world.call("GET", "/v1/projects/beta/secrets", who="bob")).json() == {"items": []}

    gone = await world.call("DELETE", f"{SECRETS}/hf/value")
    assert gone.status_code == 204
    assert [one["keys"] for one in (await world.call("GET", SECRETS)).json()["items"]] == [["read.only"], ["value"]]
    for path in ("hf/value", "none", "none/value"):
        missing = await world.call("DELETE", f"{SECRETS}/{path}")
        assert (missing.status_code, missing.json()["code"]) == (404, "NotFound"), path
    assert (await world.call("DELETE", f"{SECRETS}/hf/read.only")).status_code == 204
    assert (await world.call("DELETE", f"{SECRETS}/wandb")).status_code == 204
    assert (await world.call("GET", SECRETS)).json() == {"items": []}
    said = "".join(one.text for one in (made, again, listed, gone)) + caplog.text
    assert VALUE not in said and base64.b64encode(VALUE.encode()).decode() not in said


@pytest.mark.parametrize(
    ("where", "body", "pointer"),
    [
        ("hf/value", {"value": ""}, "/value"),
        ("hf/value", {"value": [VALUE]}, "/value"),
        ("hf/value", {"value": VALUE * 2000}, "/value"),
        ("hf/value", {"value": VALUE, "other": VALUE}, "/other"),
        ("HF/value", {"value": VALUE}, "/secret"),
        ("hf/.k", {"value": VALUE}, "/key"),
    ],
)
async def test_what_is_wrong_is_reported_without_the_value(world, where, body, pointer):
    answer = await world.call("PUT", f"{SECRETS}/{where}", json=body)
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == pointer, answer.text
    assert VALUE not in answer.text
    broken = await world.call(
        "PUT",
        f"{SECRETS}/hf/value",
        content=f'{{"value": "{VALUE}\x00'.encode(),
        headers={"Content-Type": "application/json"},
    )
    assert broken.status_code == 400 and VALUE not in broken.text


async def test_whose_right_it_is(world, body):
    assert (await put(world, who="reader")).status_code == 403
    assert (await put(world, who="bob")).status_code == 404
    assert (await world.call("GET", SECRETS, who="reader")).status_code == 403
    spec = {"HF_TOKEN": {"secret": "hf"}}
    assert (await world.submit(**body("one", secretEnv=spec))).status_code == 201, "it need not be there yet"
    shown = (await world.call("GET", "/v1/projects/alpha/jobs/one", who="reader")).json()["spec"]["secretEnv"]
    assert shown == {"HF_TOKEN": {"secret": "hf", "key": "value"}}
    twice = await world.submit(**body("two", secretEnv=spec, env={"HF_TOKEN": VALUE}))
    assert twice.status_code == 422 and VALUE not in twice.text


async def test_on_a_cluster_the_callers_own_account_writes(world):
    if "hands" not in world.__dict__:
        pytest.skip("a cluster's")
    await world.hands.grant(
        "nobody", "alpha", ("projectsecrets", ["list", "update", "delete"], []), ("trainingjobs", ["get"], [])
    )
    refused = await put(world, who="nobody")
    assert refused.status_code == 403 and "cannot patch resource" in refused.json()["detail"], refused.text
    assert "system:serviceaccount:alpha:nobody" in refused.json()["detail"]
    assert VALUE not in refused.text and base64.b64encode(VALUE.encode()).decode() not in refused.text
    assert (await world.call("GET", SECRETS, who="nobody")).status_code == 403
    # Another's Secret under such a name, from before the policy was there, is left as it is.
    other = {"metadata": {"name": "stoker-secret.tls"}, "type": "Opaque", "data": {"k": "eA=="}}
    await world.hands.send("POST", "/api/v1/namespaces/alpha/secrets", other)
    kept = await put(world, "tls/value")
    assert kept.status_code == 422 and VALUE not in kept.text, kept.text
    assert (await world.call("DELETE", f"{SECRETS}/tls")).status_code == 404
    assert (await put(world, who="admin")).status_code == 201
    stored = await world.hands.send("GET", "/api/v1/namespaces/alpha/secrets/stoker-secret.hf")
    assert (stored["type"], stored["data"]) == (
        "stoker.dev/project-secret",
        {"value": base64.b64encode(VALUE.encode()).decode()},
    )


async def test_a_clone_needs_the_right_to_its_secrets_too(world, body):
    if "hands" not in world.__dict__:
        pytest.skip("on one machine who may submit to a project may use its secrets")
    assert (await world.submit(**body("one", secretEnv={"HF_TOKEN": {"secret": "hf"}}))).status_code == 201
    jobs = ("trainingjobs", ["get", "create"], [])
    await world.hands.grant("nobody", "alpha", jobs, ("queues", ["use"], []), ("projectsecrets", ["use"], ["other"]))
    refused = await world.call("POST", "/v1/projects/alpha/jobs/one/clone", who="nobody", json={})
    assert (refused.status_code, refused.json()["code"]) == (403, "SecretForbidden"), refused.text
    assert refused.json()["errors"][0]["pointer"] == "/spec/secretEnv/HF_TOKEN/secret"
    without = await world.call(
        "POST", "/v1/projects/alpha/jobs/one/clone", who="nobody", json={"spec": {"secretEnv": {"HF_TOKEN": None}}}
    )
    assert without.status_code == 201, without.text
