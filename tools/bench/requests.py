"""What each request of a job's life costs API server and etcd, one kind after the other: CPU a request.

    python -m tools.bench.requests [--count 400]

On a control plane without operator: which write is expensive, and what a change of the definitions does to it. The same
work costs up to twice the CPU where the machine is busy, so compare runs of one sitting. Owns the measurement; the
cluster is `cluster`'s.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stoker.controller.status_writes import write_status
from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.life.conditions import with_scheduled
from stoker.life.step import Note
from stoker.spec.event import EVENTS, Subject, event_about
from stoker.spec.job import JOBS, Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.reasons import Code
from stoker.store.clock import SystemClock
from tests.support.testbed import build
from tests.support.testbed.control_plane import API, ETCD
from tools.bench import kueue
from tools.bench.cluster import PROJECT, USER, Bench, at_once, control_plane, prepare
from tools.bench.record import record

SETTLE_S = 1.0
"""The watch caches' share of what was written comes a moment later."""


class Requests:
    """Jobs of *baseline*, and the writes that they get."""

    def __init__(self, bench: Bench, client: KubeClient) -> None:
        self._bench, self._store = bench, KubeStore(client, SystemClock())
        self._jobs: dict[str, TrainingJob] = {}

    async def measure(self, what: str, write: Callable[[str], Awaitable[object]], names: list[str]) -> None:
        await asyncio.sleep(SETTLE_S)
        before = self._bench.cpu_s()
        await at_once([write(name) for name in names])
        await asyncio.sleep(SETTLE_S)
        after = self._bench.cpu_s()
        each = {part: 1e3 * (after[part] - before[part]) / len(names) for part in (API, ETCD)}
        print(f"| {what} | {each[API]:.1f} | {each[ETCD]:.2f} |", flush=True)
        record(what=what, **{f"{part}_ms": ms for part, ms in each.items()})

    async def create(self, name: str) -> None:
        spec = kueue.SHAPES["baseline"].kinds[0].spec("default")
        job = TrainingJob(metadata=ObjectMeta(name=name, namespace=PROJECT), spec=spec)
        self._jobs[name] = await self._store.create(JOBS, job)

    async def place(self, name: str) -> None:
        job, now = self._jobs[name], datetime.now(UTC)
        update = {"phase": Phase.STARTING, "reason": Code.PLACED, "message": "placed on node-00000", "attempt": 1}
        status = job.status.model_copy(update=update | {"placement": (Placed(worker=0, node="node-00000"),)})
        await self._write(job, with_scheduled(status, now, job.metadata.generation))

    async def run(self, name: str) -> None:
        job = self._jobs[name]
        update = {"phase": Phase.RUNNING, "reason": Code.WORKERS_RUNNING, "message": "running"}
        await self._write(job, job.status.model_copy(update=update | {"started_at": datetime.now(UTC)}))

    async def _write(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        version = await write_status(self._store, job, status)
        meta = job.metadata.model_copy(update={"resource_version": version})
        self._jobs[job.metadata.name] = job.model_copy(update={"metadata": meta, "status": status})

    async def record(self, note: Note, name: str) -> None:
        job = self._jobs[name]
        subject = Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=Key(PROJECT, name), uid=job.uid)
        now = datetime.now(UTC)
        event = event_about(subject, note.reason, note.message, at=now, mark="0", component="stoker-operator")
        await self._store.create(EVENTS, event)


async def run(count: int, folder: Path) -> None:
    with control_plane() as plane:
        prepare(plane)
        async with KubeClient.from_config(kubeconfig=plane.kubeconfig_for(USER), clock=SystemClock()) as client:
            requests = Requests(Bench(plane, client, folder), client)
            first, names = ([f"{prefix}-{number}" for number in range(count)] for prefix in ("first", "job"))
            await at_once([requests.create(name) for name in first])  # what is compiled and cached once is no job's
            print("| request | API server, ms | etcd, ms |\n|---|---|---|")
            await requests.measure("create a job", requests.create, names)
            await requests.measure("status: placed", requests.place, names)
            await requests.measure("status: running", requests.run, names)
            await requests.measure("an event", partial(requests.record, Note("Running", "attempt 1: running")), names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="of each request")
    options = parser.parse_args()
    build.build("control-plane")
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        asyncio.run(run(options.count, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
