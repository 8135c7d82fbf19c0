"""Contract: list, by namespace, labels and pages."""

from __future__ import annotations

import pytest

from stoker.spec.job import JOBS
from stoker.spec.queue import QUEUES
from stoker.store.port import Gone, WatchType


async def names(store, kind, **how):
    return [obj.metadata.name for obj in (await store.list(kind, **how)).items]


async def test_a_list_is_by_namespace_then_name(store, project, make):
    first, second = f"{project}-1", f"{project}-2"
    for namespace, name in ((second, "a"), (first, "b"), (second, "c"), (first, "a-b"), (first, "a")):
        await store.create(JOBS, make.job(namespace, name))
    assert await names(store, JOBS, namespace=first) == ["a", "a-b", "b"]
    assert await names(store, JOBS, namespace=second) == ["a", "c"]
    everywhere = [obj.key for obj in (await store.list(JOBS)).items if obj.key.namespace in (first, second)]
    assert everywhere == [(first, "a"), (first, "a-b"), (first, "b"), (second, "a"), (second, "c")]


async def test_a_list_holds_one_kind(store, project, make, unique):
    queue = await store.create(QUEUES, make.queue(unique("q")))
    await store.create(JOBS, make.job(project, "a"))
    assert await names(store, JOBS, namespace=project) == ["a"]
    assert queue in (await store.list(QUEUES)).items


async def test_labels_must_all_match(store, project, make):
    for name, labels in (("a", {"x": "1", "y": "1"}), ("b", {"x": "1"}), ("c", {"x": "2", "y": "1"}), ("d", {})):
        await store.create(JOBS, make.job(project, name, labels=labels))
    assert await names(store, JOBS, namespace=project, labels={"x": "1"}) == ["a", "b"]
    assert await names(store, JOBS, namespace=project, labels={"x": "1", "y": "1"}) == ["a"]
    assert await names(store, JOBS, namespace=project, labels={"x": "3"}) == []
    assert await names(store, JOBS, namespace=project, labels={}) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
async def test_pages_add_up_to_the_whole(store, project, make, count):
    for number in range(count):
        await store.create(JOBS, make.job(project, f"j{number}"))
    found, token, versions, sizes = [], None, set(), []
    while True:
        page = await store.list(JOBS, namespace=project, limit=4, continue_token=token)
        found += [obj.metadata.name for obj in page.items]
        sizes.append(len(page.items))
        versions.add(page.resource_version)
        token = page.continue_token
        if token is None:
            break
    assert found == [f"j{number}" for number in range(count)]
    assert all(size == 4 for size in sizes[:-1]) and len(versions) == 1


async def test_pages_stand_for_one_moment(store, project, make, reader):
    jobs = [await store.create(JOBS, make.job(project, f"j{number}")) for number in range(6)]
    first = await store.list(JOBS, namespace=project, limit=2)
    await store.delete(JOBS, jobs[5].key)
    await store.patch_status(JOBS, jobs[4].key, {"message": "later"}, manager="operator")
    await store.create(JOBS, make.job(project, "j3-later"))
    rest = await store.list(JOBS, namespace=project, limit=10, continue_token=first.continue_token)
    assert first.items + rest.items == tuple(jobs) and rest.resource_version == first.resource_version
    events = await reader.take(store.watch(JOBS, since=rest.resource_version), 3, project)
    assert [(event.type, event.object.metadata.name) for event in events] == [
        (WatchType.DELETED, "j5"),
        (WatchType.MODIFIED, "j4"),
        (WatchType.ADDED, "j3-later"),
    ]


async def test_labels_hold_over_pages(store, project, make):
    for number in range(8):
        await store.create(JOBS, make.job(project, f"j{number}", labels={"odd": str(number % 2)}))
    first = await store.list(JOBS, namespace=project, labels={"odd": "1"}, limit=2)
    rest = await store.list(JOBS, namespace=project, labels={"odd": "1"}, limit=2, continue_token=first.continue_token)
    assert [obj.metadata.name for obj in first.items + rest.items] == ["j1", "j3", "j5", "j7"]


async def test_an_unknown_token_is_gone(store, project):
    with pytest.raises(Gone):
        await store.list(JOBS, namespace=project, limit=2, continue_token="1.77.2")
