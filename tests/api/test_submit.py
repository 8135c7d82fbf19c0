"""Submitting: what comes back, what is stored, names, idempotency, dry run."""

from __future__ import annotations

import asyncio

from stoker.spec.job import JOBS
from stoker.spec.meta import Key


async def test_a_submitted_job_is_there_at_once(world, body):
    answer = await world.submit(**body("one", priority=3, cpu="1", memory="1Gi"))
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == "/v1/projects/alpha/jobs/one"
    assert answer.headers["etag"] == f'"{job["metadata"]["uid"]}.{job["metadata"]["resourceVersion"]}"'
    assert job["spec"]["priority"] == 3 and job["status"]["phase"] == "Queued"
    assert job["metadata"]["annotations"] == {"stoker.dev/submitter": world.name("alice")}
    again = await world.call("GET", "/v1/projects/alpha/jobs/one")
    assert again.status_code == 200 and again.json() == job
    stored = await world.store.get(JOBS, Key("alpha", "one"))
    assert stored.dump() == job
    listed = await world.call("GET", "/v1/projects/alpha/jobs")
    assert listed.json() == {"items": [job], "nextCursor": None}


async def test_nameless_jobs_are_named_by_what_they_run(world, body):
    for trainer, base in (
        ({"command": ["python", "train.py"]}, "train-"),
        ({"command": ["torchrun", "--nproc=2", "src/My_Model.py"]}, "my-model-"),
        ({"command": ["python", "-m", "pkg.tool"]}, "tool-"),
        ({"command": ["/bin/sleep", "9"]}, "sleep-"),
        ({"command": ["/usr/bin/uv", "run", "--frozen", "my_train.py"]}, "my-train-"),
        ({"command": ["poetry", "run", "python", "fit.py"]}, "fit-"),
        ({"command": ["./run"]}, "run-"),
        ({"command": ["bash"]}, "bash-"),
        ({"recipe": "image-classification"}, "image-classification-"),
    ):
        name = (await world.submit(spec={"trainer": trainer})).json()["metadata"]["name"]
        assert name.startswith(base) and len(name) == len(base) + 5, name
    given = await world.submit(**{**body(), "metadata": {"generateName": "mine-"}})
    assert given.json()["metadata"]["name"].startswith("mine-")


async def test_dry_run_checks_everything_and_stores_nothing(world, body):
    path = "/v1/projects/alpha/jobs?dryRun=true"
    answer = await world.call("POST", path, json=body("one", cpu=2))
    assert answer.status_code == 200 and answer.json()["spec"]["cpu"] == "2"
    assert (await world.call("POST", path, json=body("one", gpusPerWorker=9))).json()["code"] == "NeverFits"
    assert await world.names() == []
    await world.job("one")
    assert (await world.call("POST", path, json=body("one"))).json()["code"] == "AlreadyExists"


async def test_who_may_lose_all_their_work_is_warned(world, body):
    assert "warning" not in (await world.submit(**body("calm"))).headers
    spec = {"preemption": {"withinQueue": "LowerPriority"}}
    there = await world.call("PUT", "/v1/queues/rough", who="admin", json={"spec": spec})
    assert there.status_code in (200, 201), there.text
    warned = await world.submit(**body("one", queue="rough"))
    assert warned.status_code == 201, warned.text
    assert warned.headers["warning"].startswith('299 - "it may be preempted, and begins anew')
    for preemptible in (True, False):
        path, job = "/v1/projects/alpha/jobs?dryRun=true", body("two", queue="rough", preemptible=preemptible)
        assert ("warning" in (await world.call("POST", path, json=job)).headers) == preemptible


async def test_a_taken_name_is_a_conflict(world, body):
    await world.job("one")
    answer = await world.submit(**body("one"))
    assert answer.status_code == 409 and answer.json()["code"] == "AlreadyExists"
    assert answer.json()["errors"][0]["pointer"] == "/metadata/name"


async def test_the_same_key_and_body_give_the_same_job(world, body):
    first = await world.submit(**body(), key="k1")
    again = await world.submit(**body(), key="k1")
    assert first.status_code == again.status_code == 201
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert first.json() == again.json() and first.headers["location"] == again.headers["location"]
    assert len(await world.names()) == 1


async def test_the_same_key_and_another_body_are_refused(world, body):
    await world.submit(**body("one"), key="k1")
    for other in (body("one", priority=1), body("two"), body()):
        answer = await world.submit(**other, key="k1")
        assert answer.status_code == 422 and answer.json()["code"] == "IdempotencyKeyReused", other
    assert await world.names() == ["alpha/one"]


async def test_keys_are_the_submitters_own(world, body):
    mine = await world.submit(**body(), key="k1")
    theirs = await world.submit(**body(), key="k1", who="admin")
    elsewhere = await world.submit(**body(), key="k1", who="admin", project="beta")
    assert len({answer.json()["metadata"]["uid"] for answer in (mine, theirs, elsewhere)}) == 3


async def test_a_key_outlives_the_api(world, body):
    from stoker_api.jobs.index import JobIndex

    first = (await world.submit(**body(), key="k1")).json()
    fresh = JobIndex(world.deps.jobs)  # what a restarted api builds from the store
    object.__setattr__(world.services, "index", fresh)
    world.services.submitter._index = fresh
    assert (await world.submit(**body(), key="k1")).json() == first
    # Even where the index knows nothing yet, the name derived from the key leads to the same job.
    fresh._by_idempotency.clear()
    replay = await world.submit(**body(), key="k1")
    assert replay.json() == first and replay.headers["idempotency-replayed"] == "true"


async def test_twenty_twins_make_one_job(served, body):
    for given in (body(), body("named")):
        answers = await asyncio.gather(*(served.submit(**given, key=f"twin{len(given)}") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["metadata"]["uid"] for answer in answers}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert len(await served.names()) == 2


async def test_labels_and_annotations_are_kept(world, body):
    meta = {"name": "one", "labels": {"team": "vision"}, "annotations": {"example.com/note": "hi there"}}
    job = (await world.submit(**{**body(), "metadata": meta})).json()
    assert job["metadata"]["labels"] == {"team": "vision"}
    stamped = {"example.com/note": "hi there", "stoker.dev/submitter": world.name("alice")}
    assert job["metadata"]["annotations"] == stamped


async def test_what_a_job_begins_with_is_there_and_has_ended(world):
    recipe = {"recipe": "image-classification"}
    for name, spec, pointer in (
        ("a", {"trainer": {**recipe, "initFrom": {"job": "a"}}}, "/spec/trainer/initFrom/job"),
        ("b", {"trainer": recipe, "checkpoint": {"from": {"job": "b"}}}, "/spec/checkpoint/from/job"),
    ):

        async def refused(detail: str, spec=spec, pointer=pointer, **where: str) -> None:
            answer = await world.submit(spec=spec, **where)
            assert answer.status_code == 422, answer.text
            assert answer.json()["errors"] == [{"pointer": pointer, "detail": detail, "in": "body"}]

        await refused(f"there is no job '{name}' in project 'alpha'")
        source = await world.job(name)
        await refused(f"job '{name}' has not ended (Queued); wait for it, or cancel it")
        await world.status(source, phase="Succeeded")
        assert (await world.submit(spec=spec)).status_code == 201
        await refused(f"there is no job '{name}' in project 'beta'", project="beta", who="admin")
