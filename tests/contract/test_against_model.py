"""Contract: any sequence of operations gives what a plain dictionary would, and the watch replays it."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from stoker.store.port import AlreadyExists, Conflict, Invalid, NotFound, WatchType
from tests.support.examples import examples

NAMES = ("a", "b", "c")
FINALIZERS = ("stoker.dev/one", "stoker.dev/two")

name = st.sampled_from(NAMES)
which = st.sampled_from(("fresh", "stale", "none"))  # which resourceVersion comes with the write
operation = st.one_of(
    st.tuples(st.just("create"), name, st.sets(st.sampled_from(FINALIZERS))),
    st.tuples(st.just("priority"), name, which, st.integers(0, 2)),
    st.tuples(st.just("labels"), name, which, st.dictionaries(st.sampled_from(("x", "y")), st.just("1"))),
    st.tuples(st.just("finalizers"), name, which, st.sets(st.sampled_from(FINALIZERS))),
    st.tuples(st.just("status"), name, which, st.sampled_from(("", "m", "n"))),
    st.tuples(st.just("delete"), name, st.booleans()),
)


class Model:
    """What the port says, over one dictionary: name -> fields."""

    def __init__(self):
        self.objects = {}
        self.changes = []  # (type, name)

    def apply(self, step):
        """Returns: the error type the store must raise, or None."""
        verb, name, *rest = step
        obj = self.objects.get(name)
        if verb == "create":
            if obj is not None:
                return AlreadyExists
            self.objects[name] = {
                "priority": 0, "labels": {}, "finalizers": set(rest[0]), "message": "", "generation": 1, "marked": False
            }  # fmt: skip
            self.changes.append((WatchType.ADDED, name))
            return None
        if obj is None:
            return NotFound
        if verb == "delete":
            if rest[0]:
                return Conflict
            if not obj["finalizers"]:
                self._remove(name)
            elif not obj["marked"]:
                obj.update(marked=True, generation=None)
                self.changes.append((WatchType.MODIFIED, name))
            return None
        version, value = rest
        if version == "stale":
            return Conflict
        if verb == "finalizers" and obj["marked"] and set(value) - obj["finalizers"]:
            return Invalid
        field = "message" if verb == "status" else verb
        if obj[field] == value:
            return None
        obj[field] = value
        if not obj["marked"]:
            obj["generation"] += verb == "priority"
        if obj["marked"] and not obj["finalizers"]:
            self._remove(name)
        else:
            self.changes.append((WatchType.MODIFIED, name))
        return None

    def _remove(self, name):
        del self.objects[name]
        self.changes.append((WatchType.DELETED, name))


async def carry_out(store, make, project, step):
    verb, name, *rest = step
    key = Key(project, name)
    if verb == "create":
        await store.create(JOBS, make.job(project, name, finalizers=sorted(rest[0])))
        return
    if verb == "delete":
        await store.delete(JOBS, key, uid="00000000-0000-4000-8000-000000000000" if rest[0] else None)
        return
    which, value = rest
    current = await store.get(JOBS, key)
    version = {"fresh": current.metadata.resource_version, "stale": "1", "none": ""}[which]
    if verb == "status":
        await store.patch_status(JOBS, key, {"message": value}, manager="operator", resource_version=version or None)
        return
    wanted = make.changed(current, resource_version=version)
    if verb == "priority":
        wanted = make.with_priority(wanted, value)
    else:
        wanted = make.changed(wanted, **{verb: value if verb == "labels" else tuple(sorted(value))})
    await store.update(JOBS, wanted)


def seen(job):
    return {
        "priority": job.spec.priority,
        "labels": dict(job.metadata.labels),
        "finalizers": set(job.metadata.finalizers),
        "message": job.status.message,
        # Kubernetes counts the deletion mark as a change, which nothing of ours relies on.
        "generation": None if job.metadata.deletion_timestamp else job.metadata.generation,
        "marked": job.metadata.deletion_timestamp is not None,
    }


def test_any_sequence_matches_a_dictionary(new_store, make, unique, reader, is_cluster):
    async def check(steps):
        if is_cluster:  # saying the default for the first time is a change there
            steps = [(*step[:3], step[3] or "l") if step[0] == "status" else step for step in steps]
        model, project = Model(), unique("model")
        async with new_store() as store:
            since = (await store.list(JOBS, limit=1)).resource_version
            for step in steps:
                expected, got = model.apply(step), None
                try:
                    await carry_out(store, make, project, step)
                except (AlreadyExists, NotFound, Conflict, Invalid) as error:
                    got = type(error)
                assert got is expected, step
                listed = (await store.list(JOBS, namespace=project)).items
                assert {job.metadata.name: seen(job) for job in listed} == model.objects, step
            events = await reader.take(store.watch(JOBS, since=since), len(model.changes), project)
            assert [(event.type, event.object.metadata.name) for event in events] == model.changes
            state = {}
            for event in events:
                state[event.object.key] = event.object
                if event.type is WatchType.DELETED:
                    del state[event.object.key]
            assert list(dict(sorted(state.items())).values()) == list(listed if steps else ())

    @examples(15 if is_cluster else 150)
    @given(steps=st.lists(operation, max_size=25))
    def holds(steps):
        asyncio.run(check(steps))

    holds()


def test_at_once_they_leave_one_history(new_store, make, unique, reader, is_cluster):
    """Thrown at the store all at once, whatever wins: the watch replays to the very state a list shows."""

    async def check(steps):
        project = unique("race")
        async with new_store() as store:
            since = (await store.list(JOBS, limit=1)).resource_version
            await asyncio.gather(*(carry_out(store, make, project, step) for step in steps), return_exceptions=True)
            marker = await store.create(JOBS, make.job(project, "marker"))
            listed = {job.key: job for job in (await store.list(JOBS, namespace=project)).items}
            state, last, watch = {}, 0, store.watch(JOBS, since=since)
            while marker.key not in state:
                [event] = await reader.take(watch, 1, project)
                assert int(event.resource_version) > last
                last = int(event.resource_version)
                known = event.object.key in state
                assert known == (event.type is not WatchType.ADDED)
                if event.type is WatchType.DELETED:
                    del state[event.object.key]
                else:
                    state[event.object.key] = event.object
            assert state == listed

    @examples(15 if is_cluster else 40)
    @given(steps=st.lists(operation, min_size=2, max_size=30))
    def holds(steps):
        asyncio.run(check(steps))

    holds()
