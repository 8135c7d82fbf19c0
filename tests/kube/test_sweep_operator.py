"""Each of the operator's writes that could lose or double a job, times each fault: the job's life comes out the same.

One life has a gang of two, a suspend, a resume and a time to live, another a job that preempts, so that every kind of
write is in them. `make sweep` runs them and writes docs/reliability.md's tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

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
PREEMPTING = {
    "the claim": ("status of trainingjobs: claim", "high-{name}"),
    "the victim: Stopping": ("status of trainingjobs: Stopping", "{name}-low"),
    "the victim: Queued again": ("status of trainingjobs: Queued", "preempted for job high-{name}"),
    "the preempting job: Starting": ("status of trainingjobs: Starting", "high-{name}"),
}
"""Row → the write, and what its path or body has."""
LIFE_S = 90.0


class Lives:
    """Lives of jobs in a world, one after the other."""

    def __init__(self, world: World, proxy: FaultyProxy, kubeconfig: Path) -> None:
        self._world, self._proxy, self._kubeconfig = world, proxy, kubeconfig
        self._subject = Subject(kubeconfig)
        self._last: dict[str, TrainingJob] = {}
        self.queue = f"{world.project}-preempts"
        world.jobs.subscribe(self._see)
        world.kubelet.script = lambda pod: Play(code=None if fnmatch(pod.metadata.name, "c*-1-?") else 0)

    async def begin(self) -> None:
        await self._subject.begin()

    async def end(self) -> None:
        self._proxy.dead.set()
        await self._subject.end()

    async def live(self, name: str, write: str, fault: Fault | None) -> float:
        """A gang's life. Returns: seconds it took. Raises: AssertionError naming the broken promise."""
        return await self._under(fault, write, name, self._stopped_and_resumed(name), {name: 2}, workers=2)

    async def preempt(self, name: str, row: str, fault: Fault | None) -> float:
        """The lives of a job and of its victim; else as `live`."""
        low, high, (write, within) = f"{name}-low", f"high-{name}", PREEMPTING[row]
        return await self._under(
            fault, write, within.format(name=name), self._preempted(low, high), {low: 2, high: 1}, workers=1
        )

    async def _under(
        self, fault: Fault | None, write: str, within: str, life: Coroutine[Any, Any, None], attempts: dict[str, int],
        workers: int,
    ) -> float:  # fmt: skip
        """attempts: Job → how many it has had when it has succeeded."""
        began = time.monotonic()
        if fault is not None:
            self._proxy.arm(write, within, fault)
        reviving = asyncio.create_task(self._revive())
        try:
            async with asyncio.timeout(LIFE_S):
                await life
                for name in attempts:
                    await self._world.until(lambda name=name: self._gone(name), lambda: str(self._last), LIFE_S)
        except TimeoutError:
            states = {name: self._last.get(name) for name in attempts}
            raise AssertionError(f"not over within {LIFE_S:.0f} s: {states}") from None
        finally:
            reviving.cancel()
            await asyncio.gather(reviving, return_exceptions=True)
        took_s = time.monotonic() - began
        assert fault is None or self._proxy.hit.is_set(), "the write was never made"
        for name, attempt in attempts.items():
            last = self._last[name].status
            assert (last.phase, last.attempt) == ("Succeeded", attempt), f"{name}: {last.phase} ({last.attempt})"
            runs = Counter(pod for pod in self._world.kubelet.ran if pod.startswith(f"{name}-"))
            wanted = (f"{name}-{n}-{worker}" for n in range(1, attempt + 1) for worker in range(workers))
            assert runs == Counter(wanted), f"ran: {runs}"
        return took_s

    async def _stopped_and_resumed(self, name: str) -> None:
        await self._world.submit(name, workers=2, gpusPerWorker=1, ttlAfterFinished="1s")
        await self._world.phase(name, "Running", timeout_s=LIFE_S)
        await self._suspend(name, True)
        await self._world.phase(name, "Suspended", timeout_s=LIFE_S)
        await self._suspend(name, False)

    async def _preempted(self, low: str, high: str) -> None:
        every = {"queue": self.queue, "gpusPerWorker": 4, "ttlAfterFinished": "1s"}
        await self._world.submit(low, **every)
        await self._world.phase(low, "Running", timeout_s=LIFE_S)
        await self._world.submit(high, priority=5, **every)

    def _gone(self, name: str) -> bool:
        return self._world.jobs.get(Key(self._world.project, name)) is None and not self._world.pods_of(name)

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
    queue = {"apiVersion": "stoker.dev/v1alpha1", "kind": "Queue", "metadata": {"name": f"{world.project}-preempts"}}
    queue["spec"] = {"preemption": {"withinQueue": "LowerPriority"}}
    await world.kubectl("create", "-f", "-", stdin=json.dumps(queue))
    async with proxied(world.operators_config) as (proxy, kubeconfig):
        made = Lives(world, proxy, kubeconfig)
        await made.begin()
        try:
            yield made
        finally:
            await made.end()
            await world.kubectl("delete", "queue", made.queue, "--wait=false")


@pytest.mark.sweep
@pytest.mark.timeout(5400)
async def test_no_fault_at_a_write_loses_or_doubles_a_job(empty_world: World) -> None:
    async with lives(empty_world) as made:
        await made.live("c-plain", "", None)
        await swept("operator", WRITES, made.live)


@pytest.mark.sweep
@pytest.mark.timeout(2700)
async def test_no_fault_at_a_preemption_loses_or_doubles_a_job(empty_world: World) -> None:
    async with lives(empty_world) as made:
        await made.preempt("c-plain", "the claim", None)
        await swept("preemption", PREEMPTING, made.preempt)


async def swept(table: str, rows: Iterable[str], live: Callable[[str, str, Fault], Awaitable[float]]) -> None:
    """Each row with each fault. `SWEEP_ONLY`: those with this text alone, and no table."""
    cells: dict[tuple[str, Fault], str] = {}
    only = os.environ.get("SWEEP_ONLY", "")
    for number, row in enumerate(rows):
        for column, fault in enumerate(Fault):
            if only not in f"{row} x {fault}":
                continue
            try:
                cells[row, fault] = f"{await live(f'c{number}x{column}', row, fault):.1f} s"
            except AssertionError as error:
                cells[row, fault] = f"**{error}**"
            print(f"{row} x {fault}: {cells[row, fault]}", flush=True)
    if not only:
        write_table(table, cells)
    assert not [f"{cell}: {said}" for cell, said in cells.items() if said.startswith("**")]
