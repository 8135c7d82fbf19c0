"""kill -9 in mid-write: what was acknowledged is there, no version is given out twice, the file is sound."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS
from stoker.spec.pod import PODS
from stoker.store.clock import SystemClock

WRITER = """
import asyncio, json, random, sys
from pathlib import Path
from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.store.clock import SystemClock
from stoker.store.seam import Seam

path, run, rules = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def report(name, obj, gone=False):
    meta = obj.metadata
    print(json.dumps([name, meta.uid, int(meta.resource_version), obj.status.message, gone]), flush=True)

async def write(store, worker):
    rng, number = random.Random(f"{run}/{worker}"), 0
    while True:
        number += 1
        job = await store.create(JOBS, TrainingJob.model_validate(
            {"metadata": {"name": f"r{run}-w{worker}-{number}", "namespace": "p"},
             "spec": {"trainer": {"command": ["true"]}}}))
        report(job.metadata.name, job)
        for step in range(rng.randrange(4)):
            job = await store.patch_status(JOBS, job.key, {"message": f"{number}.{step}"}, manager="operator")
            report(job.metadata.name, job)
        if rng.random() < 0.5:
            print(json.dumps([job.metadata.name, "deleting"]), flush=True)
            await store.delete(JOBS, job.key)
            report(job.metadata.name, job, gone=True)

async def main():
    async with EmbeddedStore(path, SystemClock(), Seam.parse(rules)) as store:
        page = await store.list(JOBS)
        print(json.dumps({"opened": int(page.resource_version)}), flush=True)
        await asyncio.gather(*(write(store, worker) for worker in range(8)))

asyncio.run(main())
"""


def killed_run(path, run, *, lines=None, rules=""):
    """Run the writer until it has said so many lines (or kills itself by `rules`). Returns: all it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, path, str(run), rules], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    said = []
    for line in process.stdout:
        if line.endswith("\n"):
            said.append(json.loads(line))
        if lines is not None and len(said) == lines:
            process.kill()
    stderr = process.stderr.read()
    assert process.wait() == -signal.SIGKILL, stderr
    watchdog.cancel()
    process.stdout.close()
    process.stderr.close()
    return said


async def read(path):
    async with EmbeddedStore(path, SystemClock()) as store:
        assert not store.unreadable
        page = await store.list(JOBS)
        return {job.metadata.name: job for job in page.items}, int(page.resource_version)


def check(path, said, given_out):
    """Hold what a killed writer said against the file. `given_out`: every version acknowledged so far, in all runs."""
    opened = said[0]["opened"]
    expected, doubtful = {}, set()
    for line in said[1:]:
        if line[1] == "deleting":
            doubtful.add(line[0])
            continue
        name, uid, version, message, gone = line
        assert version > opened and (gone or version not in given_out), "a version was given out twice"
        given_out.add(version)
        expected[name] = None if gone else (uid, version, message)
    found, newest = asyncio.run(read(path))
    assert newest >= max(given_out, default=0)
    for name, state in expected.items():
        job = found.get(name)
        if state is None:
            assert job is None, f"{name} is back"
        elif job is None:
            assert name in doubtful, f"{name} was acknowledged and is lost"
        else:
            uid, version, _ = state
            assert job.uid == uid and int(job.metadata.resource_version) >= version
            if int(job.metadata.resource_version) == version:
                assert job.status.message == state[2]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_killed_at_random_moments(tmp_path):
    path, rng, given_out = tmp_path / "stoker.db", random.Random(3), set()
    for run in range(12):
        said = killed_run(path, run, lines=rng.randrange(1, 400))
        check(path, said, given_out)
    assert len(given_out) > 200


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 7])
def test_killed_around_a_commit(tmp_path, side, nth):
    path, given_out = tmp_path / "stoker.db", set()
    check(path, killed_run(path, 0, lines=50), given_out)
    check(path, killed_run(path, 1, rules=f"kill {side} sqlite.commit:{nth}"), given_out)


def test_killed_before_the_commit_nothing_is_there_and_after_it_everything(tmp_path):
    before, after = tmp_path / "before.db", tmp_path / "after.db"
    killed_run(before, 0, rules="kill before sqlite.commit")
    killed_run(after, 0, rules="kill after sqlite.commit")
    assert asyncio.run(read(before))[0] == {}
    assert len(asyncio.run(read(after))[0]) == 8


ORPHANS = """
import asyncio, sys
from pathlib import Path
from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.pod import PODS, Pod
from stoker.store.clock import SystemClock
from stoker.store.seam import Seam

async def main():
    async with EmbeddedStore(Path(sys.argv[1]), SystemClock(), Seam.parse("kill before store.collect:3")) as store:
        owners = [await store.create(JOBS, TrainingJob.model_validate(
            {"metadata": {"name": name, "namespace": "p"}, "spec": {"trainer": {"command": ["true"]}}}))
            for name in ("gone", "stays")]
        for owner in owners:
            for number in range(5):
                await store.create(PODS, Pod.model_validate({
                    "metadata": {"name": f"{owner.metadata.name}-{number}", "namespace": "p", "ownerReferences": [
                        {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.metadata.name,
                         "uid": owner.uid}]},
                    "spec": {"containers": [{}]}}))
        await store.delete(JOBS, owners[0].key)
        await asyncio.sleep(30)

asyncio.run(main())
"""


async def test_orphans_are_collected_after_a_kill_in_mid_cascade(tmp_path):
    path = tmp_path / "stoker.db"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ORPHANS, path)
    assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    with sqlite3.connect(path) as connection:
        left = connection.execute("SELECT count(*) FROM objects WHERE name LIKE 'gone-%' AND json IS NOT NULL")
        assert left.fetchone()[0] > 0, "the kill came too late to prove anything"
    connection.close()
    async with EmbeddedStore(path, SystemClock()) as store:
        async with asyncio.timeout(10):
            while any(pod.metadata.name.startswith("gone") for pod in (await store.list(PODS)).items):
                await asyncio.sleep(0.005)
        assert len((await store.list(PODS)).items) == 5
