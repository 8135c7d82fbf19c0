"""A job once more, and patches of what may change: merged as RFC 7396 says, checked as a new job is."""

from __future__ import annotations

import pytest

from stoker_api.jobs.clone import merged

ONE = "/v1/projects/alpha/jobs/one"


async def clone(world, body=None, **how):
    return await world.call("POST", f"{ONE}/clone", json=body or {}, **how)


async def patch(world, spec, **how):
    return await world.call("PATCH", ONE, json={"spec": spec}, **how)


@pytest.mark.parametrize(
    ("base", "change", "found"),
    [  # of the RFC's own table
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(base, change, found):
    assert merged(base, change) == found


async def test_a_clone_is_a_new_job_that_does_the_same(world):
    first = await world.submit(
        metadata={"name": "one", "labels": {"team": "nlp"}},
        spec={"trainer": {"recipe": "image-classification"}, "priority": 3, "suspend": True},
    )
    assert first.status_code == 201, first.text
    await world.call("POST", f"{ONE}/cancel")
    made = await clone(world)
    assert made.status_code == 201 and made.headers["location"].endswith(made.json()["metadata"]["name"])
    job = made.json()
    assert job["metadata"]["name"].startswith("one-") and job["metadata"]["labels"]["team"] == "nlp"
    asked = first.json()["spec"] | {"suspend": False, "cancel": False, "retryGeneration": 0}
    assert job["spec"] == asked and job["metadata"]["uid"] != first.json()["metadata"]["uid"]


async def test_a_clone_differs_in_what_the_patch_says(world):
    await world.job("one", env={"A": "1", "B": "2"}, stop={"maxDuration": "1h"})
    change = {"env": {"A": None, "C": "3"}, "stop": None, "priority": 2}
    body = {"metadata": {"name": "two", "labels": {"try": "2"}}, "spec": change}
    assert (await clone(world, body, params={"dryRun": "true"})).status_code == 200
    made = await clone(world, body, headers={"Idempotency-Key": "k"})
    job = made.json()
    assert (job["metadata"]["name"], job["metadata"]["labels"]["try"]) == ("two", "2")
    assert job["spec"]["env"] == {"B": "2", "C": "3"} and job["spec"]["priority"] == 2
    assert "maxDuration" not in job["spec"]["stop"]
    again = await clone(world, body, headers={"Idempotency-Key": "k"})
    assert again.status_code == 201 and again.headers["idempotency-replayed"] == "true"
    assert (await clone(world, body)).json()["code"] == "AlreadyExists"


async def test_a_clone_goes_on_from_the_checkpoint_of_one_that_has_ended(world):
    job = await world.job("one")
    early = await clone(world, {"fromCheckpoint": True})
    assert early.status_code == 422 and early.json()["errors"][0]["pointer"] == "/spec/checkpoint/from/job"
    await world.status(job, phase="Succeeded", reason="Completed")
    made = await clone(world, {"fromCheckpoint": True})
    assert made.json()["spec"]["checkpoint"]["from"] == {"job": "one"}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"spec": {"workers": "2"}}, "/spec/workers"),
        ({"spec": {"trainer": None}}, "/spec/trainer"),
        ({"spec": {"nope": 1}}, "/spec/nope"),
        ({"fromCheckpiont": True}, "/fromCheckpiont"),
        ({"metadata": {"labels": {"stoker.dev/x": "1"}}}, "/metadata/labels/stoker.dev~1x"),
    ],
)
async def test_a_clone_is_checked_as_a_new_job(world, body, pointer):
    await world.job("one")
    answer = await clone(world, body)
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == pointer, answer.text


async def test_what_one_may_not_see_is_not_cloned(world):
    await world.job("one")
    assert (await clone(world, who="bob")).status_code in (403, 404)
    assert (await world.call("POST", "/v1/projects/alpha/jobs/none/clone", json={})).status_code == 404


async def test_priority_may_change_as_far_as_the_queue_takes_it(world):
    before = await world.job("one")
    done = await patch(world, {"priority": 7}, headers={"Content-Type": "application/merge-patch+json"})
    assert done.status_code == 200 and done.json()["spec"]["priority"] == 7
    assert done.json()["metadata"]["uid"] == before.uid
    stale = await patch(world, {"priority": 8}, headers={"If-Match": '"1"'})
    assert stale.status_code == 412
    fresh = await patch(world, {"priority": 8}, headers={"If-Match": done.headers["etag"]})
    assert fresh.json()["spec"]["priority"] == 8
    assert (await patch(world, {"priority": None})).json()["spec"]["priority"] == 0
    await world.call("PUT", "/v1/queues/default", json={"spec": {"highestPriority": 5}}, who="admin")
    above = await patch(world, {"priority": 6})
    assert above.status_code == 422 and above.json()["code"] == "PriorityTooHigh"


@pytest.mark.parametrize(
    ("spec", "pointer", "says"),
    [
        ({"workers": 2}, "/spec/workers", "can't be changed once the job exists; submit a new job, or clone this one"),
        ({"priority": "5"}, "/spec/priority", "must be a valid integer"),
        ({"nope": 1}, "/spec/nope", "there is no field 'nope'"),
        ({"cancel": False, "retryGeneration": -1}, "/spec/retryGeneration", "greater than or equal to 0"),
    ],
)
async def test_a_patch_of_anything_else_is_refused(world, spec, pointer, says):
    await world.job("one")
    answer = await patch(world, spec)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == pointer and says in fault["detail"]


async def test_a_patch_suspends_resumes_and_cancels(world):
    await world.job("one")
    assert (await patch(world, {"suspend": True})).json()["spec"]["suspend"] is True
    assert (await patch(world, {"suspend": False, "cancel": True})).json()["spec"]["cancel"] is True
    back = await patch(world, {"cancel": False})
    assert back.status_code == 422 and "can't be taken back" in back.text


async def test_a_retry_of_one_that_succeeded_names_clone(world):
    job = await world.job("one")
    await world.status(job, phase="Succeeded", reason="Completed")
    answer = await world.call("POST", f"{ONE}/retry")
    assert answer.status_code == 409 and "Clone it instead: `stoker clone`" in answer.json()["detail"]
