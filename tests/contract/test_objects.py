"""Contract: create, get, update, patch_status."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from stoker.spec.job import JOBS, Phase
from stoker.spec.meta import Key
from stoker.spec.queue import QUEUES
from stoker.store.port import AlreadyExists, Conflict, Invalid, NotFound


async def test_create_fills_in_what_is_the_stores(store, project, make):
    created = await store.create(JOBS, make.job(project, "a", labels={"x": "1"}, annotations={"stoker.dev/n": "é"}))
    meta = created.metadata
    assert meta.uid and meta.resource_version.isdecimal() and meta.generation == 1
    assert abs(meta.creation_timestamp - datetime.now(UTC)) < timedelta(seconds=30)
    assert meta.labels == {"x": "1"} and meta.annotations == {"stoker.dev/n": "é"}
    assert await store.get(JOBS, created.key) == created


async def test_create_ignores_status_and_server_fields(store, project, make):
    job = make.changed(
        make.job(project, "a"), uid="mine", resource_version="", generation=7, deletion_timestamp=datetime.now(UTC)
    )
    job = job.model_copy(update={"status": job.status.model_copy(update={"phase": Phase.RUNNING, "attempt": 3})})
    created = await store.create(JOBS, job)
    assert created.status.phase is Phase.QUEUED and created.status.attempt == 0
    assert created.metadata.uid != "mine" and created.metadata.generation == 1
    assert created.metadata.deletion_timestamp is None


async def test_names_are_taken_once_per_kind_and_namespace(store, project, make, unique):
    await store.create(JOBS, make.job(project, "a"))
    with pytest.raises(AlreadyExists):
        await store.create(JOBS, make.job(project, "a"))
    await store.create(JOBS, make.job(unique("other"), "a"))
    await store.create(QUEUES, make.queue(unique("a")))


async def test_of_many_creates_of_one_name_one_wins(store, project, make):
    results = await asyncio.gather(
        *(store.create(JOBS, make.job(project, "a", priority=n)) for n in range(8)), return_exceptions=True
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1 and sum(isinstance(result, AlreadyExists) for result in results) == 7
    assert await store.get(JOBS, Key(project, "a")) == won[0]


@pytest.mark.parametrize("name", ["", "Upper", "a_b", "-a", "a" * 254, "ä"])
async def test_bad_names_are_invalid(store, project, make, name):
    with pytest.raises(Invalid, match=r"metadata\.name|name"):
        await store.create(JOBS, make.job(project, name))


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": "c d"}, {"a": "x" * 64}, {"": "x"}])
async def test_bad_labels_are_invalid(store, project, make, labels):
    with pytest.raises(Invalid, match="labels"):
        await store.create(JOBS, make.job(project, "a", labels=labels))


async def test_scope_is_kept(store, project, make, unique):
    queue = await store.create(QUEUES, make.queue(unique("q")))
    assert queue.key == Key("", queue.metadata.name)
    assert await store.get(QUEUES, queue.key) == queue
    with pytest.raises(Invalid):
        await store.create(QUEUES, make.queue(unique("q"), namespace=project))
    with pytest.raises(Invalid):
        await store.create(JOBS, make.job("", "a"))


async def test_a_spec_that_breaks_the_schema_is_invalid(store, project, make):
    job = make.job(project, "a")
    broken = job.model_copy(update={"spec": job.spec.model_copy(update={"workers": 0})})  # copies aren't validated
    with pytest.raises(Invalid, match=r"spec\.workers"):
        await store.create(JOBS, broken)


async def test_get_of_nothing(store, project):
    with pytest.raises(NotFound):
        await store.get(JOBS, Key(project, "nothing"))


async def test_generation_counts_changes_of_spec_only(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    labelled = await store.update(JOBS, make.changed(first, labels={"x": "1"}))
    assert labelled.metadata.generation == 1 and labelled.metadata.labels == {"x": "1"}
    raised = await store.update(JOBS, make.with_priority(labelled, 5))
    assert raised.metadata.generation == 2 and raised.spec.priority == 5
    patched = await store.patch_status(JOBS, first.key, {"message": "hello"}, manager="operator")
    assert patched.metadata.generation == 2 and patched.metadata.labels == {"x": "1"}
    versions = [int(obj.metadata.resource_version) for obj in (first, labelled, raised, patched)]
    assert versions == sorted(set(versions))


async def test_update_is_refused_on_an_old_version(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    await store.update(JOBS, make.with_priority(first, 1))
    with pytest.raises(Conflict):
        await store.update(JOBS, make.with_priority(first, 2))
    assert (await store.get(JOBS, first.key)).spec.priority == 1


async def test_a_version_conflict_counts_status_writes_too(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    await store.patch_status(JOBS, first.key, {"message": "m"}, manager="operator")
    with pytest.raises(Conflict):
        await store.update(JOBS, make.with_priority(first, 2))


async def test_update_without_a_version_is_unconditional(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    await store.update(JOBS, make.with_priority(first, 1))
    free = make.changed(make.with_priority(first, 2), resource_version="")
    assert (await store.update(JOBS, free)).spec.priority == 2


async def test_update_of_another_uid_is_a_conflict(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    await store.delete(JOBS, first.key)
    await store.create(JOBS, make.job(project, "a"))
    with pytest.raises(Conflict):
        await store.update(JOBS, make.changed(make.with_priority(first, 2), resource_version=""))


async def test_update_of_nothing(store, project, make):
    with pytest.raises(NotFound):
        await store.update(JOBS, make.job(project, "nothing"))


async def test_update_never_touches_status_or_server_fields(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    patched = await store.patch_status(JOBS, first.key, {"phase": "Running"}, manager="operator")
    stale = patched.model_copy(update={"status": first.status})
    stale = make.changed(stale, creation_timestamp=None, generation=99, deletion_timestamp=datetime.now(UTC))
    updated = await store.update(JOBS, make.with_priority(stale, 3))
    assert updated.status.phase is Phase.RUNNING
    assert updated.metadata.creation_timestamp == first.metadata.creation_timestamp
    assert updated.metadata.deletion_timestamp is None and updated.metadata.generation == 2


async def test_update_keeps_the_kinds_own_rules(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    moved = first.model_copy(update={"spec": first.spec.model_copy(update={"queue": "other"})})
    with pytest.raises(Invalid, match=r"spec\.queue"):
        await store.update(JOBS, moved)


async def test_writes_that_change_nothing_leave_the_version(store, project, make):
    first = await store.create(JOBS, make.job(project, "a", labels={"x": "1"}))
    assert await store.update(JOBS, first) == first
    patched = await store.patch_status(JOBS, first.key, {"message": "m"}, manager="operator")
    again = await store.patch_status(JOBS, first.key, {"message": "m", "startedAt": None}, manager="operator")
    assert again == patched == await store.get(JOBS, first.key)


async def test_a_status_can_be_patched_for_its_version_alone(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    how = {"manager": "operator", "uid": job.uid, "resource_version": job.metadata.resource_version}
    version = await store.patch_unread(JOBS, job.key, {"message": "m"}, **how)
    stored = await store.get(JOBS, job.key)
    assert (stored.metadata.resource_version, stored.status.message) == (version, "m")
    with pytest.raises(Conflict):
        await store.patch_unread(JOBS, job.key, {"message": "n"}, **how)


async def test_patch_status_is_a_merge_patch(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    at = "2026-01-02T03:04:05Z"
    await store.patch_status(
        JOBS,
        job.key,
        {
            "phase": "Starting",
            "startedAt": at,
            "placement": [{"worker": 0, "node": "n1"}, {"worker": 1, "node": "n2"}],
            "retries": {"NodeLost": 1, "UserError": 2},
            "progress": {"at": 1.5, "metrics": {"loss": 0.5, "accuracy": 0.9}},
        },
        manager="operator",
    )
    patched = await store.patch_status(
        JOBS,
        job.key,
        {
            "startedAt": None,
            "placement": [{"worker": 0, "node": "n3"}],
            "retries": {"UserError": None},
            "progress": {"metrics": {"loss": 0.25}},
        },
        manager="api",
    )
    status = patched.status
    assert status.phase is Phase.STARTING and status.started_at is None
    assert [placed.node for placed in status.placement] == ["n3"]  # lists are replaced
    assert status.retries == {"NodeLost": 1}
    assert status.progress.at == 1.5 and status.progress.metrics == {"loss": 0.25, "accuracy": 0.9}
    assert patched.spec == job.spec


@pytest.mark.parametrize(
    "patch",
    [{"phase": "Dancing"}, {"attempt": "many"}, {"progress": {"at": 1.0, "metrics": {"loss": float("nan")}}}],
)
async def test_an_invalid_status_is_refused_whole(store, project, make, patch):
    job = await store.create(JOBS, make.job(project, "a"))
    with pytest.raises(Invalid):
        await store.patch_status(JOBS, job.key, {"message": "m", **patch}, manager="operator")
    assert await store.get(JOBS, job.key) == job


async def test_patch_status_preconditions(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    with pytest.raises(Conflict):
        await store.patch_status(JOBS, job.key, {"message": "m"}, manager="operator", uid="another")
    version = job.metadata.resource_version
    await store.patch_status(JOBS, job.key, {"message": "m"}, manager="api", uid=job.uid, resource_version=version)
    with pytest.raises(Conflict):
        await store.patch_status(JOBS, job.key, {"message": "n"}, manager="operator", resource_version=version)
    with pytest.raises(NotFound):
        await store.patch_status(JOBS, Key(project, "nothing"), {}, manager="operator")


async def test_of_writers_on_one_version_one_wins(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    results = await asyncio.gather(
        *(store.update(JOBS, make.with_priority(job, n)) for n in range(1, 9)), return_exceptions=True
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1 and sum(isinstance(result, Conflict) for result in results) == 7


async def test_status_writers_without_a_version_all_win(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    await asyncio.gather(
        *(
            store.patch_status(JOBS, job.key, {"progress": {"at": 1.0, "metrics": {f"m{n}": n}}}, manager="api")
            for n in range(10)
        )
    )
    assert set((await store.get(JOBS, job.key)).status.progress.metrics) == {f"m{n}" for n in range(10)}
