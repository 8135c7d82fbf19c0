"""Contract: delete, finalizers, and the cascade to what a deleted object owns."""

from __future__ import annotations

import pytest

from stoker.spec.job import JOBS
from stoker.spec.meta import Key, OwnerReference
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import PODS
from stoker.spec.queue import QUEUES
from stoker.store.port import AlreadyExists, Conflict, Invalid, NotFound, WatchType


@pytest.fixture(autouse=True)
def _collected(request, is_cluster):
    if is_cluster:
        request.getfixturevalue("control_plane").wait_for_collector()


async def gone(store, kind, key, reader):
    """Wait by the watch until the object is removed."""
    page = await store.list(kind, namespace=key.namespace)
    if key not in {obj.key for obj in page.items}:
        return
    watch = store.watch(kind, since=page.resource_version)
    while True:
        [event] = await reader.take(watch, 1, key.namespace)
        if event.type is WatchType.DELETED and event.object.key == key:
            return


async def test_delete_removes_and_frees_the_name(store, project, make):
    first = await store.create(JOBS, make.job(project, "a"))
    await store.delete(JOBS, first.key)
    with pytest.raises(NotFound):
        await store.get(JOBS, first.key)
    with pytest.raises(NotFound):
        await store.delete(JOBS, first.key)
    second = await store.create(JOBS, make.job(project, "a"))
    assert second.uid != first.uid
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)


async def test_delete_of_another_uid_is_a_conflict(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    with pytest.raises(Conflict):
        await store.delete(JOBS, job.key, uid="00000000-0000-4000-8000-000000000000")
    await store.delete(JOBS, job.key, uid=job.uid)


async def test_finalizers_hold_the_object(store, project, make):
    job = await store.create(JOBS, make.job(project, "a", finalizers=[FINALIZER_OUTCOME, "stoker.dev/two"]))
    await store.delete(JOBS, job.key, grace_s=7)
    marked = await store.get(JOBS, job.key)
    assert marked.metadata.deletion_timestamp is not None
    assert int(marked.metadata.resource_version) > int(job.metadata.resource_version)
    await store.delete(JOBS, job.key, grace_s=7)
    assert await store.get(JOBS, job.key) == marked  # marked is marked

    patched = await store.patch_status(JOBS, job.key, {"message": "ending"}, manager="operator")
    held = await store.update(JOBS, make.changed(patched, finalizers=("stoker.dev/two",)))
    assert held.metadata.deletion_timestamp == marked.metadata.deletion_timestamp
    assert await store.get(JOBS, job.key) == held
    last = await store.update(JOBS, make.changed(held, finalizers=()))
    assert last.status.message == "ending"
    with pytest.raises(NotFound):
        await store.get(JOBS, job.key)


async def test_the_mark_says_the_grace(store, project, make, is_cluster):
    job = await store.create(JOBS, make.job(project, "owner"))
    pod = await store.create(PODS, make.pod(project, "p", job, finalizers=[FINALIZER_OUTCOME]))
    if is_cluster:  # a pod that no node has taken needs no grace there
        await store.bind(pod.key, "n1")
    await store.delete(PODS, pod.key, grace_s=12)
    assert (await store.get(PODS, pod.key)).metadata.deletion_grace_period_seconds == 12


async def test_no_finalizer_can_be_added_under_deletion(store, project, make):
    job = await store.create(JOBS, make.job(project, "a", finalizers=[FINALIZER_OUTCOME]))
    await store.delete(JOBS, job.key)
    marked = await store.get(JOBS, job.key)
    with pytest.raises(Invalid, match="finalizers"):
        await store.update(JOBS, make.changed(marked, finalizers=(FINALIZER_OUTCOME, "stoker.dev/late")))


async def test_finalizers_of_a_living_object_come_and_go(store, project, make):
    job = await store.create(JOBS, make.job(project, "a"))
    held = await store.update(JOBS, make.changed(job, finalizers=(FINALIZER_OUTCOME,)))
    free = await store.update(JOBS, make.changed(held, finalizers=()))
    assert await store.get(JOBS, job.key) == free


async def test_the_name_is_taken_until_the_finalizers_are_gone(store, project, make):
    job = await store.create(JOBS, make.job(project, "a", finalizers=[FINALIZER_OUTCOME]))
    await store.delete(JOBS, job.key)
    with pytest.raises(AlreadyExists):
        await store.create(JOBS, make.job(project, "a"))


def same(pod, kept, is_cluster):
    """Whether it was left alone; on a cluster the scheduler writes into the status of pods meanwhile."""
    if is_cluster:
        return (pod.uid, pod.spec, pod.metadata.deletion_timestamp) == (kept.uid, kept.spec, None)
    return pod == kept


async def test_what_an_object_owns_goes_with_it(store, project, make, reader, is_cluster):
    job, other = [await store.create(JOBS, make.job(project, name)) for name in ("a", "b")]
    for number in range(5):
        await store.create(PODS, make.pod(project, f"a-{number}", job))
    kept = await store.create(PODS, make.pod(project, "b-0", other))
    await store.delete(JOBS, job.key)
    for number in range(5):
        await gone(store, PODS, Key(project, f"a-{number}"), reader)
    assert same(await store.get(PODS, kept.key), kept, is_cluster)


async def test_the_cascade_keeps_the_rules_of_delete(store, project, make, reader, is_cluster):
    job = await store.create(JOBS, make.job(project, "a"))
    pod = await store.create(PODS, make.pod(project, "a-0", job, finalizers=[FINALIZER_OUTCOME]))
    watch = store.watch(PODS, since=pod.metadata.resource_version)
    await store.delete(JOBS, job.key)
    [event] = await reader.take(watch, 1, project)
    while is_cluster and event.object.metadata.deletion_timestamp is None:  # the scheduler's word on it
        [event] = await reader.take(watch, 1, project)
    assert event.type is WatchType.MODIFIED and event.object.metadata.deletion_timestamp is not None
    marked = event.object
    while True:
        try:
            await store.update(PODS, make.changed(marked, finalizers=()))
            break
        except Conflict:  # the scheduler wrote once more
            assert is_cluster
            marked = await store.get(PODS, pod.key)
    await gone(store, PODS, pod.key, reader)


async def test_the_cascade_waits_for_the_owners_finalizers(store, project, make, reader):
    job = await store.create(JOBS, make.job(project, "a", finalizers=[FINALIZER_OUTCOME]))
    pod = await store.create(PODS, make.pod(project, "a-0", job))
    await store.delete(JOBS, job.key)
    assert (await store.get(PODS, pod.key)).metadata.deletion_timestamp is None
    await store.update(JOBS, make.changed(await store.get(JOBS, job.key), finalizers=()))
    await gone(store, PODS, pod.key, reader)


async def test_the_cascade_goes_down_the_generations(store, project, make, reader):
    top = await store.create(JOBS, make.job(project, "top"))
    ref = OwnerReference(api_version=top.api_version, kind=top.kind, name="top", uid=top.uid)
    middle = await store.create(JOBS, make.changed(make.job(project, "middle"), owner_references=(ref,)))
    pod = await store.create(PODS, make.pod(project, "p", middle))
    await store.delete(JOBS, top.key)
    await gone(store, JOBS, middle.key, reader)
    await gone(store, PODS, pod.key, reader)


async def test_an_object_born_after_its_owner_went_is_collected(store, project, make, reader):
    job = await store.create(JOBS, make.job(project, "a"))
    await store.delete(JOBS, job.key)
    await store.create(JOBS, make.job(project, "a"))  # the same name is not the same owner
    pod = await store.create(PODS, make.pod(project, "late", job))
    await gone(store, PODS, pod.key, reader)


async def test_an_owner_in_no_namespace_owns_across_them(store, project, make, reader, unique, is_cluster):
    queue = await store.create(QUEUES, make.queue(unique("q")))
    pod = await store.create(PODS, make.pod(project, "p", queue))
    other = await store.create(
        PODS,
        make.pod(
            project,
            "orphan",
            queue.model_copy(
                update={"metadata": queue.metadata.model_copy(update={"uid": "00000000-0000-4000-8000-000000000000"})}
            ),
        ),
    )
    await gone(store, PODS, other.key, reader)
    assert same(await store.get(PODS, pod.key), pod, is_cluster)
    await store.delete(QUEUES, queue.key)
    await gone(store, PODS, pod.key, reader)
