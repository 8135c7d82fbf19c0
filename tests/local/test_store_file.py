"""The store's file: restarts, migrations, foreign and damaged files, a full disk, faults in mid-commit."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys

import pytest

from stoker.local import db
from stoker.local.db import Database, ObjectRow, WrongFile
from stoker.local.store import EmbeddedStore
from stoker.spec.event import EVENTS, Event
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.pod import PODS, Pod
from stoker.store.clock import ManualClock, SystemClock
from stoker.store.port import AlreadyExists, CannotRead, Conflict, Gone, NotFound, Unavailable
from stoker.store.seam import Seam


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stoker.db"


def job(name, **metadata):
    return TrainingJob.model_validate(
        {"metadata": {"name": name, "namespace": "p", **metadata}, "spec": {"trainer": {"command": ["true"]}}}
    )


async def test_all_is_there_after_a_restart(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        first = await store.create(JOBS, job("a", labels={"x": "1"}, finalizers=["stoker.dev/outcome"]))
        await store.patch_status(
            JOBS, first.key, {"progress": {"at": 0.1, "metrics": {"loss": 1e-300}}, "message": "ü\n"}, manager="api"
        )
        await store.delete(JOBS, first.key)
        gone = await store.create(JOBS, job("b"))
        await store.delete(JOBS, gone.key)
        before = await store.list(JOBS)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    async with EmbeddedStore(path, SystemClock()) as store:
        assert await store.list(JOBS) == before
        with pytest.raises(Gone):
            await anext(store.watch(JOBS, since=first.metadata.resource_version))
        new = await store.create(JOBS, job("c"))
        assert int(new.metadata.resource_version) > int(before.resource_version)
        event = await anext(store.watch(JOBS, since=before.resource_version))
        assert event.object == new


async def test_a_version_from_the_future_is_gone(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        with pytest.raises(Gone):
            await anext(store.watch(JOBS, since="999"))


async def test_the_counter_survives_the_sweep_of_tombstones(path, monkeypatch):
    monkeypatch.setattr(db, "_SWEEP_EVERY", 3)
    async with EmbeddedStore(path, SystemClock()) as store:
        for number in range(7):
            last = await store.create(JOBS, job(f"j{number}"))
            await store.delete(JOBS, last.key)
        newest = (await store.list(JOBS)).resource_version
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM objects").fetchone()[0] < 3
    connection.close()
    for _ in range(2):
        async with EmbeddedStore(path, SystemClock()) as store:
            assert (await store.list(JOBS)).resource_version == newest


async def test_closed_it_answers_unavailable_and_watches_end(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        created = await store.create(JOBS, job("a"))
        following = asyncio.create_task(anext(store.watch(JOBS, since=created.metadata.resource_version)))
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await following
    for call in (store.get(JOBS, created.key), store.list(JOBS), store.create(JOBS, job("b"))):
        with pytest.raises(Unavailable):
            await call


async def test_writes_under_way_are_done_before_it_closes(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        tasks = [asyncio.create_task(store.create(JOBS, job(f"j{number}"))) for number in range(50)]
        await asyncio.sleep(0)
    assert all(isinstance(done, TrainingJob) for done in await asyncio.gather(*tasks))
    async with EmbeddedStore(path, SystemClock()) as store:
        assert len((await store.list(JOBS)).items) == 50


async def test_a_cancelled_caller_does_not_undo_or_break_others(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        first = asyncio.create_task(store.create(JOBS, job("a")))
        second = asyncio.create_task(store.create(JOBS, job("a")))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(AlreadyExists):
            await second
        assert (await store.get(JOBS, Key("p", "a"))).metadata.name == "a"


async def test_a_second_opener_is_turned_away(path):
    async with EmbeddedStore(path, SystemClock()):
        with pytest.raises(Unavailable, match="in use by another process"):
            async with EmbeddedStore(path, SystemClock()):
                pass


async def test_a_newer_file_is_refused_and_left_alone(path):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {db.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 99")
        connection.execute("CREATE TABLE new (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(WrongFile, match=r"newer Stoker \(schema 99; this one knows 1\)"):
        async with EmbeddedStore(path, SystemClock()):
            pass
    assert path.read_bytes() == before


async def test_files_of_others_are_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(WrongFile, match="not a Stoker store"):
        async with EmbeddedStore(path, SystemClock()):
            pass
    path.write_bytes(b"no database at all, but long enough to be read as the header of one " * 20)
    with pytest.raises(WrongFile):
        async with EmbeddedStore(path, SystemClock()):
            pass


async def test_a_path_that_cannot_be_is_unavailable(tmp_path):
    with pytest.raises(Unavailable):
        async with EmbeddedStore(tmp_path / "no" / "folder.db", SystemClock()):
            pass


def test_migrations_run_once_each_and_keep_the_rows(path):
    old = Database(path)
    old.write([ObjectRow("TrainingJob", "p", "a", "u", 7, "{}")])
    old.close()
    migrations = (*db.MIGRATIONS, "ALTER TABLE meta ADD COLUMN note TEXT;")
    for _ in range(2):
        new = Database(path, migrations=migrations)
        assert list(new.load()) == [ObjectRow("TrainingJob", "p", "a", "u", 7, "{}")] and new.newest_version() == 7
        new.close()
    with pytest.raises(WrongFile, match="newer"):
        Database(path)


def test_a_failed_migration_changes_nothing(path):
    Database(path).close()
    with pytest.raises(Unavailable):
        Database(path, migrations=(*db.MIGRATIONS, "CREATE TABLE half (x); CREATE TABLE half (x);"))
    Database(path).close()


async def test_an_unreadable_object_stops_nothing_and_keeps_its_name(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        await store.create(JOBS, job("good"))
        await store.create(JOBS, job("bad"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE objects SET json = replace(json, '\"command\"', '\"commando\"') WHERE name = 'bad'")
        connection.execute("INSERT INTO objects VALUES ('FutureKind', '', 'x', 'u-x', 3, '{}')")
    connection.close()
    async with EmbeddedStore(path, SystemClock()) as store:
        assert [found.metadata.name for found in (await store.list(JOBS)).items] == ["good"]
        assert sorted(kind for kind, _, _ in store.unreadable) == ["FutureKind", "TrainingJob"]
        with pytest.raises(AlreadyExists):
            await store.create(JOBS, job("bad"))
        for call in (store.get(JOBS, job("bad").key), store.delete(JOBS, job("bad").key)):
            with pytest.raises(CannotRead, match="can't read TrainingJob p/bad"):
                await call
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM objects").fetchone() == (3,)
    connection.close()


async def test_an_unreadable_owner_keeps_what_it_owns(path):
    def pod(name, uid):
        owner = {"apiVersion": JOBS.api_version, "kind": "TrainingJob", "name": "bad", "uid": uid}
        return Pod.model_validate(
            {
                "metadata": {"name": name, "namespace": "p", "ownerReferences": [owner]},
                "spec": {"containers": [{}]},
            }
        )

    async with EmbeddedStore(path, SystemClock()) as store:
        owner = await store.create(JOBS, job("bad"))
        kept = await store.create(PODS, pod("kept", owner.uid))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE objects SET json = '{}' WHERE name = 'bad'")
    connection.close()
    async with EmbeddedStore(path, SystemClock()) as store, asyncio.timeout(10):
        orphan = await store.create(PODS, pod("orphan", "no-owner"))
        watch = store.watch(PODS, since=orphan.metadata.resource_version)
        assert (await anext(watch)).object.metadata.name == "orphan"  # the collector has been round
        assert (await store.list(PODS)).items == (kept,)


@pytest.mark.parametrize("rule", ["fail before sqlite.commit:2", "fail before store.create:2"])
async def test_a_failed_write_leaves_no_trace(path, rule):
    async with EmbeddedStore(path, SystemClock(), Seam.parse(rule)) as store:
        first = await store.create(JOBS, job("a"))
        with pytest.raises(Unavailable):
            await store.create(JOBS, job("b"))
        assert [found.metadata.name for found in (await store.list(JOBS)).items] == ["a"]
        second = await store.create(JOBS, job("b"))
        assert int(second.metadata.resource_version) > int(first.metadata.resource_version)
        event = await anext(store.watch(JOBS, since=first.metadata.resource_version))
        assert event.object == second


async def test_a_commit_that_failed_after_all_was_done_counts_as_done(path):
    async with EmbeddedStore(path, SystemClock(), Seam.parse("fail after sqlite.commit:2")) as store:
        await store.create(JOBS, job("a"))
        second = await store.create(JOBS, job("b"))
    async with EmbeddedStore(path, SystemClock()) as store:
        assert await store.get(JOBS, second.key) == second


async def test_a_failed_commit_takes_along_what_was_decided_on_top(path):
    """Answers that rest on a write under way wait for it: no AlreadyExists, NotFound or Conflict for what never was."""
    async with EmbeddedStore(path, SystemClock(), Seam.parse("fail sqlite.commit:2")) as store:
        kept = await store.create(JOBS, job("kept"))
        results = await asyncio.gather(
            store.create(JOBS, job("a")),
            store.create(JOBS, job("a")),
            store.patch_status(JOBS, Key("p", "a"), {"message": "m"}, manager="operator"),
            store.delete(JOBS, kept.key),
            store.get(JOBS, kept.key),
            store.patch_status(JOBS, kept.key, {"message": "m"}, manager="operator"),
            store.create(JOBS, job("other")),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [Unavailable] * 4 + [TrainingJob] + [Unavailable] * 2
        assert (await store.list(JOBS)).items == (kept,)
        await store.patch_status(JOBS, kept.key, {"message": "m"}, manager="operator")
        with pytest.raises(Conflict):
            await store.update(JOBS, kept)
        with pytest.raises(NotFound):
            await store.get(JOBS, Key("p", "a"))


DISK_FULL = """
import asyncio, os, resource, sys
from pathlib import Path
from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.store.clock import SystemClock
from stoker.store.port import Unavailable

def job(name):
    return TrainingJob.model_validate({"metadata": {"name": name, "namespace": "p",
        "annotations": {"a": "x" * 20_000}}, "spec": {"trainer": {"command": ["true"]}}})

async def main():
    path, done = Path(sys.argv[1]), []
    async with EmbeddedStore(path, SystemClock()) as store:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            for number in range(100):
                await store.create(JOBS, job(f"j{number}"))
                done.append(f"j{number}")
        except Unavailable as error:
            print("full:", error)
        else:
            sys.exit("never full")
        assert [found.metadata.name for found in (await store.list(JOBS)).items] == sorted(done)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await store.create(JOBS, job("later"))
    async with EmbeddedStore(path, SystemClock()) as store:
        assert [found.metadata.name for found in (await store.list(JOBS)).items] == sorted([*done, "later"])

asyncio.run(main())
"""


def test_a_full_disk_is_unavailable_and_passes(path):
    done = subprocess.run([sys.executable, "-c", DISK_FULL, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "full: the store can't write" in done.stdout


def event(number, about):
    return Event.model_validate(
        {
            "metadata": {"name": f"e{number}", "namespace": "p"},
            "involved_object": {"kind": "TrainingJob", "name": about, "uid": about},
            "reason": "Test",
            "first_timestamp": "2026-01-01T00:00:00Z",
        }
    )


async def test_events_are_kept_up_to_the_limits(path):
    limits = {"max_events": 10, "max_events_per_object": 4}
    async with EmbeddedStore(path, ManualClock(), **limits) as store:
        for number in range(6):
            await store.create(EVENTS, event(number, "one"))
        for number in range(6, 20):
            await store.create(EVENTS, event(number, f"other-{number}"))
    async with EmbeddedStore(path, ManualClock(), **limits) as store:
        names = {found.metadata.name for found in (await store.list(EVENTS)).items}
        assert names == {f"e{number}" for number in range(10, 20)}
        for number in range(20, 25):
            await store.create(EVENTS, event(number, "one"))
    async with EmbeddedStore(path, ManualClock(), max_events=3) as store:
        pass
    async with EmbeddedStore(path, ManualClock()) as store:
        names = sorted(found.metadata.name for found in (await store.list(EVENTS)).items)
        assert names == ["e22", "e23", "e24"]
