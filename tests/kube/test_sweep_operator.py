"""Each of the operator's writes that could lose or double a job, times each fault: the job's life comes out the same.

One life has a gang of two, a suspend, a resume and a time to live, so that every kind of write is in it. `make sweep`
runs it and writes docs/reliability.md's table.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.store.cache import Change
from stoker.store.port import Conflict
from tests.support.testbed.faulty_proxy import Fault, FaultyProxy, proxied
from tests.support.testbed.kubelets import Play
from tests.support.testbed.sweep_table import write_table

from .operator_world import World
from .sweep_subject import Subject

WRITES = (
    "status of trainingjobs: Starting",
    "create services",
    "create pods",
    "status of trainingjobs: Running",
    "status of trainingjobs: Stopping",
    "delete pods",
    "update pods",
    "status of trainingjobs: Suspended",
    "status of trainingjobs: Queued",
    "status of trainingjobs: Succeeded",
    "delete services",
    "delete trainingjobs",
)
LIFE_S = 90.0


class Lives:
    """Lives of jobs in a world, one after the other."""

    def __init__(self, world: World, proxy: FaultyProxy, kubeconfig: Path) -> None:
        self._world, self._proxy, self._kubeconfig = world, proxy, kubeconfig
        self._subject = Subject(kubeconfig)
        self._last: dict[str, TrainingJob] = {}
        world.jobs.subscribe(self._see)
        world.kubelet.script = lambda pod: Play(code=None if "-1-" in pod.metadata.name else 0)

    async def begin(self) -> None:
        await self._subject.begin()

    async def end(self) -> None:
        self._proxy.dead.set()
        await self._subject.end()

    async def live(self, name: str, write: str, fault: Fault | None) -> float:
        """One life. Returns: seconds it took. Raises: AssertionError naming the broken promise."""
        began = time.monotonic()
        if fault is not None:
            self._proxy.arm(write, name, fault)
        reviving = asyncio.create_task(self._revive())
        try:
            async with asyncio.timeout(LIFE_S):
                await self._world.submit(name, workers=2, gpusPerWorker=1, ttlAfterFinished="1s")
                await self._world.phase(name, "Running", timeout_s=LIFE_S)
                await self._suspend(name, True)
                await self._world.phase(name, "Suspended", timeout_s=LIFE_S)
                await self._suspend(name, False)
                key = Key(self._world.project, name)
                gone = lambda: self._world.jobs.get(key) is None and not self._world.pods_of(name)  # noqa: E731
                await self._world.until(gone, lambda: f"{name} to be over: {self._last[name]}", LIFE_S)
        except TimeoutError:
            raise AssertionError(f"not over within {LIFE_S:.0f} s: {self._last.get(name)}") from None
        finally:
            reviving.cancel()
            await asyncio.gather(reviving, return_exceptions=True)
        took_s = time.monotonic() - began
        assert fault is None or self._proxy.hit.is_set(), "the write was never made"
        last = self._last[name].status
        assert (last.phase, last.attempt) == ("Succeeded", 2), f"{last.phase} in attempt {last.attempt}: {last.message}"
        runs = Counter(pod for pod in self._world.kubelet.ran if pod.startswith(f"{name}-"))
        assert runs == Counter(f"{name}-{attempt}-{worker}" for attempt in (1, 2) for worker in (0, 1)), f"ran: {runs}"
        return took_s

    async def _revive(self) -> None:
        """A killed operator is followed by a new one, as a Deployment sees to."""
        while True:
            await self._proxy.dead.wait()
            await self._subject.end()
            self._subject = Subject(self._kubeconfig)
            self._proxy.revive()
            await self._subject.begin()

    async def _suspend(self, name: str, suspend: bool) -> None:
        while True:
            job = await self._world.store.get(JOBS, Key(self._world.project, name))
            spec = job.spec.model_copy(update={"suspend": suspend})
            try:
                await self._world.store.update(JOBS, job.model_copy(update={"spec": spec}))
            except Conflict:
                continue
            return

    def _see(self, change: Change[TrainingJob]) -> None:
        if change.new is not None:
            self._last[change.key.name] = change.new


@asynccontextmanager
async def lives(world: World) -> AsyncIterator[Lives]:
    await world.node("a", gpus=4)
    async with proxied(world.operators_config) as (proxy, kubeconfig):
        made = Lives(world, proxy, kubeconfig)
        await made.begin()
        try:
            yield made
        finally:
            await made.end()


@pytest.mark.sweep
@pytest.mark.timeout(5400)
async def test_no_fault_at_a_write_loses_or_doubles_a_job(empty_world: World) -> None:
    cells: dict[tuple[str, Fault], str] = {}
    only = os.environ.get("SWEEP_ONLY", "")
    async with lives(empty_world) as made:
        await made.live("plain", "", None)
        for row, write in enumerate(WRITES):
            for column, fault in enumerate(Fault):
                if only not in f"{write} x {fault}":
                    continue
                try:
                    cells[write, fault] = f"{await made.live(f'c{row}x{column}', write, fault):.1f} s"
                except AssertionError as error:
                    cells[write, fault] = f"**{error}**"
                print(f"{write} x {fault}: {cells[write, fault]}", flush=True)
    if not only:
        write_table("operator", cells)
    assert not [f"{cell}: {said}" for cell, said in cells.items() if said.startswith("**")]
