"""Group commit: writes that build on writes still under way, within a batch and over several."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.store.clock import SystemClock
from stoker.store.port import Unavailable
from stoker.store.seam import Seam

KEY = Key("p", "a")


class Gate(Seam):
    """Holds each commit on the writer thread until the test opens the gate."""

    def __init__(self, rules=()):
        super().__init__(rules)
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()

    def crossing(self, name, about=""):
        if name == "sqlite.commit":
            self.reached.set()
            assert self.open.wait(30)
        return super().crossing(name, about)


def job(name):
    return TrainingJob.model_validate(
        {"metadata": {"name": name, "namespace": "p"}, "spec": {"trainer": {"command": ["true"]}}}
    )


def count(store, name):
    """One more metric in the job's progress; each builds on all before it."""
    patch = {"progress": {"at": 1.0, "metrics": {name: 1.0}}}
    return asyncio.create_task(store.patch_status(JOBS, KEY, patch, manager="api"))


async def both_under_way(store, gate, first, second):
    """Tasks of `first` in a commit that is held, those of `second` waiting for the next."""
    gate.open.clear()
    gate.reached.clear()
    tasks = [start() for start in first]
    assert await asyncio.to_thread(gate.reached.wait, 30)
    tasks += [start() for start in second]
    await asyncio.sleep(0)
    gate.open.set()
    return tasks


@pytest.mark.parametrize("in_first", [1, 3])
async def test_no_write_on_one_object_is_lost_over_batches(tmp_path, in_first):
    names = [f"m{number}" for number in range(60)]
    gate = Gate()
    async with EmbeddedStore(tmp_path / "stoker.db", SystemClock(), gate) as store:
        await store.create(JOBS, job("a"))
        tasks = []
        for start in range(0, 60, 6):
            group = [lambda name=name: count(store, name) for name in names[start : start + 6]]
            tasks += await both_under_way(store, gate, group[:in_first], group[in_first:])
            await tasks[start]  # the first batch is out, the second may be under way: the next ones build on it
        await asyncio.gather(*tasks)
        kept = await store.get(JOBS, KEY)
        assert sorted(kept.status.progress.metrics) == sorted(names)
    async with EmbeddedStore(tmp_path / "stoker.db", SystemClock()) as store:
        assert await store.get(JOBS, KEY) == kept  # of several writes in one batch the last one is in the file


async def test_what_waits_falls_with_the_commit_it_builds_on(tmp_path):
    gate = Gate(Seam.parse("fail sqlite.commit:2")._rules)
    async with EmbeddedStore(tmp_path / "stoker.db", SystemClock(), gate) as store:
        first = await store.create(JOBS, job("a"))
        other = [lambda: asyncio.create_task(store.create(JOBS, job("b")))]
        tasks = await both_under_way(
            store, gate, [lambda: count(store, "lost")], [lambda: count(store, "on top"), *other]
        )
        assert [type(result) for result in await asyncio.gather(*tasks, return_exceptions=True)] == [Unavailable] * 3
        assert (await store.list(JOBS)).items == (first,)
        kept = await count(store, "new")
        assert list(kept.status.progress.metrics) == ["new"]
        await store.create(JOBS, job("b"))
    async with EmbeddedStore(tmp_path / "stoker.db", SystemClock()) as store:
        assert await store.get(JOBS, KEY) == kept and len((await store.list(JOBS)).items) == 2
