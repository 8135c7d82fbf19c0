"""Jobs from create to finished on a real API server, ended by a mimic of kubelets: what one costs, how long all take.

    python -m tools.bench.life kueue baseline [--part 0.1]     Kueue's configurations, jobs created at its intervals
    python -m tools.bench.life reclaim [--nodes 500]           an owner reclaims all GPUs from as many running jobs

CPU is that of API server, etcd and operator by job, the clients' own work for creating, watching and ending included.
For the part that is the pods', as many pods of that form live and end without operator and jobs, and their cost is
taken off. `--part`: of each queue's jobs. Owns the measurement; the cluster is `cluster`'s, pods' lives are `mimic`'s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.spec.job import JOBS, Phase, TrainingJob, TrainingJobSpec
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import PODS, Pod
from stoker.spec.queue import QUEUES, Queue, QueueResources, QueueSpec
from stoker.spec.worker_pod import identity
from stoker.store.cache import Change, WatchCache
from stoker.store.clock import SystemClock
from tests.support.testbed import build
from tests.support.testbed.control_plane import API, ETCD
from tools.bench import kueue
from tools.bench.cluster import AT_ONCE, GPUS, PROJECT, USER, Bench, at_once, control_plane, listed, prepare
from tools.bench.mimic import Mimic
from tools.bench.record import record

FOR_EVER_S = 1e6
ALONE = "alone-"


class Life:
    """The operator on a filled cluster, a mimic beside it, and what became of the jobs."""

    def __init__(self, bench: Bench, client: KubeClient) -> None:
        self.bench, self.client = bench, client
        self.store = KubeStore(client, SystemClock())
        self.jobs = WatchCache(self.store, JOBS, clock=SystemClock())
        self.pods = WatchCache(self.store, PODS, clock=SystemClock())
        self.run_s: dict[str, float] = {}
        self.placed_s: dict[str, float] = {}
        """Job → when it was seen placed for the first time."""
        self.phases: dict[str, Phase] = {}
        self.running_s: dict[str, float] = {}
        self.mimic = Mimic(client, self.pods, self._life_of)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        following = [asyncio.create_task(cache.run()) for cache in (self.jobs, self.pods)]
        self.jobs.subscribe(self._seen)
        try:
            for cache in (self.jobs, self.pods):
                await cache.synced()
            yield
        finally:
            self.mimic.unsubscribe()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def _life_of(self, pod: Pod) -> tuple[str, float] | None:
        if pod.metadata.name.startswith(ALONE):
            return "node-00000", 0.2
        known = identity(pod.metadata)
        if known is None:
            return None
        job = self.jobs.get(Key(PROJECT, known.job_name))
        placement = () if job is None else job.status.placement
        at = known.worker
        return (placement[at].node, self.run_s[known.job_name]) if at < len(placement) else None

    def _seen(self, change: Change[TrainingJob]) -> None:
        job = change.new
        if job is None:
            return
        name, at = job.metadata.name, time.monotonic()
        self.phases[name] = job.status.phase
        if job.status.placement:
            self.placed_s.setdefault(name, at)
        if job.status.phase is Phase.RUNNING:
            self.running_s.setdefault(name, at)

    async def create(self, name: str, spec: TrainingJobSpec, run_s: float) -> None:
        self.run_s[name] = run_s
        await self.store.create(JOBS, TrainingJob(metadata=ObjectMeta(name=name, namespace=PROJECT), spec=spec))

    async def until(self, phase: Phase, names: list[str], timeout_s: float) -> float:
        """Waits until the jobs are in that phase; when that was. Raises: TimeoutError; the mimic's failure; as
        `check_operator`."""
        began = time.monotonic()
        while not all(self.phases.get(name) is phase for name in names):
            self.bench.check_operator()
            if self.mimic.failure is not None:
                raise self.mimic.failure
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"not all {phase} after {timeout_s} s: {Counter(map(self.phases.get, names))}")
            await asyncio.sleep(0.2)
        return time.monotonic()

    async def pods_alone(self, form: Pod, count: int) -> dict[str, float]:
        """CPU of API server and etcd for so many pods like that one that are bound, run and end. Units: seconds."""
        before, done = self.bench.cpu_s(), asyncio.Event()
        left = {f"{ALONE}{number}" for number in range(count)}

        async def ends(name: str) -> None:
            await self.store.create(PODS, form.model_copy(update={"metadata": self._named(form, name)}))

        def seen(change: Change[Pod]) -> None:
            pod = change.new
            if pod is not None and pod.ended and pod.metadata.name in left:
                left.discard(pod.metadata.name)
                if not left:
                    done.set()

        unsubscribe = self.pods.subscribe(seen)
        await at_once([ends(name) for name in sorted(left)])
        await asyncio.wait_for(done.wait(), 900)
        unsubscribe()
        ended = [pod for pod in self.pods.values() if pod.metadata.name.startswith(ALONE)]
        await at_once([self.store.update(PODS, without_finalizers(pod)) for pod in ended])
        after = self.bench.cpu_s()
        return {name: after[name] - before[name] for name in (API, ETCD)}

    @staticmethod
    def _named(form: Pod, name: str) -> ObjectMeta:
        meta = form.metadata
        return ObjectMeta(
            name=name,
            namespace=meta.namespace,
            labels=meta.labels,
            annotations=meta.annotations,
            owner_references=meta.owner_references,
            finalizers=(FINALIZER_OUTCOME,),
        )


async def run_kueue(life: Life, name: str, shape: kueue.Shape) -> None:
    await life.bench.fill_nodes(shape.node_count, shape.cores, 0, shape.labels)
    for queue, spec in shape.queues().items():
        await life.store.create(QUEUES, Queue(metadata=ObjectMeta(name=queue), spec=spec))
    life.bench.start_operator(shape.levels or ())
    work = [(at_s, f"job-{n}", kind, queue) for n, (at_s, queue, kind) in enumerate(shape.work())]
    async with life.followed():
        cpu, writes, own, began = life.bench.cpu_s(), await life.bench.writes(), time.process_time(), time.monotonic()
        gate, created = asyncio.Semaphore(AT_ONCE), dict[str, float]()

        async def submit(name: str, kind: kueue.Kind, queue: str) -> None:
            async with gate:
                created[name] = time.monotonic()
                await life.create(name, kind.spec(queue), kind.run_s)

        submits = []
        for at_s, job, kind, queue in work:
            await asyncio.sleep(max(began + at_s - time.monotonic(), 0.0))
            submits.append(asyncio.create_task(submit(job, kind, queue)))
        await asyncio.gather(*submits)
        wall_s = await life.until(Phase.SUCCEEDED, [job for _, job, _, _ in work], 3000) - began
        await asyncio.sleep(3)  # events are written behind the work
        count = len(work)
        made, used = await life.bench.writes() - writes, difference(life.bench.cpu_s(), cpu)
        used["clients"] = time.process_time() - own
        waits: dict[str, list[float]] = {}
        for _, job, kind, _ in work:
            waits.setdefault(f"{kind.workers} x {kind.cores_milli}m", []).append(life.placed_s[job] - created[job])
        attempts = sum(job.status.attempt for job in life.jobs.values())
        form = next(pod for pod in life.pods.values() if pod.ended)
        workers = sum(kind.workers for _, _, kind, _ in work) / count
        life.bench.kill_operator()
        alone = await life.pods_alone(form, min(count, 1000))
    found = {"jobs": count, "attempts": attempts, "wall_s": wall_s, "bound_s": shape.bound_s}
    least_s = max(shape.bound_s, sum(used.values()) / (os.cpu_count() or 1))
    found |= {"wall_ratio": wall_s / least_s, "writes_per_job": sum(made.values()) / count, "workers_per_job": workers}
    found |= {f"{part}_ms_per_job": 1e3 * seconds / count for part, seconds in used.items()}
    found["server_ms_per_pod_alone"] = per_pod = 1e3 * sum(alone.values()) / min(count, 1000)
    pods = len([one for one in life.pods.values() if not one.metadata.name.startswith(ALONE)]) / count
    found["server_ms_per_job_without_pods"] = 1e3 * (used[API] + used[ETCD]) / count - per_pod * pods
    print(f"{name}: " + ", ".join(f"{what} {figure:.4g}" for what, figure in found.items()))
    print(f"  writes per job: {listed(made, count)}")
    print("  mean wait: " + ", ".join(f"{kind} {sum(times) / len(times):.2f} s" for kind, times in waits.items()))
    record(shape=name, **found, writes={what: n / count for what, n in made.items() if n >= count / 20})


async def run_reclaim(life: Life, nodes: int) -> None:
    count = nodes * GPUS
    await life.bench.fill_nodes(nodes)
    for name, guaranteed in (("owner", count), ("borrower", 0)):
        spec = QueueSpec(guarantee=QueueResources(gpus=guaranteed) if guaranteed else QueueResources())
        await life.store.create(QUEUES, Queue(metadata=ObjectMeta(name=name), spec=spec))
    life.bench.start_operator()

    async def submit(queue: str) -> list[str]:
        names = [f"{queue}-{number}" for number in range(count)]
        spec = TrainingJobSpec(
            queue=queue, gpus_per_worker=1, cpu="8", memory="64Gi", trainer=Trainer(command=("true",))
        )
        await at_once([life.create(name, spec, FOR_EVER_S) for name in names])
        return names

    async with life.followed():
        await life.until(Phase.RUNNING, await submit("borrower"), 1800)
        cpu, writes, own, began = life.bench.cpu_s(), await life.bench.writes(), time.process_time(), time.monotonic()
        names = await submit("owner")
        created_s = time.monotonic() - began
        all_s = await life.until(Phase.RUNNING, names, 1800) - began
        made, used = await life.bench.writes() - writes, difference(life.bench.cpu_s(), cpu)
        used["clients"] = time.process_time() - own
        stopped = sum(life.phases[f"borrower-{number}"] is not Phase.RUNNING for number in range(count))
    starts = sorted(life.running_s[name] - began for name in names)
    found = {"claimants": count, "victims": stopped, "created_s": created_s, "first_running_s": starts[0]}
    found |= {"median_running_s": starts[count // 2], "all_running_s": all_s, "writes_each": sum(made.values()) / count}
    found |= {f"{part}_ms_each": 1e3 * seconds / count for part, seconds in used.items()}
    found["all_against_cpu_ratio"] = all_s / (sum(used.values()) / (os.cpu_count() or 1))
    print("reclaim: " + ", ".join(f"{what} {figure:.4g}" for what, figure in found.items()))
    print(f"  writes per claimant: {listed(made, count)}")
    record(what="reclaim", **found)


def without_finalizers(pod: Pod) -> Pod:
    return pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"finalizers": ()})})


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}


async def run(options: argparse.Namespace, folder: Path) -> None:
    with control_plane() as plane:
        prepare(plane)
        async with KubeClient.from_config(kubeconfig=plane.kubeconfig_for(USER), clock=SystemClock()) as client:
            bench = Bench(plane, client, folder)
            try:
                if options.command == "reclaim":
                    await run_reclaim(Life(bench, client), options.nodes)
                else:
                    await run_kueue(Life(bench, client), options.shape, kueue.SHAPES[options.shape].part(options.part))
            finally:
                bench.kill_operator()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    kueues = commands.add_parser("kueue")
    kueues.add_argument("shape", choices=kueue.SHAPES)
    kueues.add_argument("--part", type=float, default=1.0, help="of each queue's jobs")
    reclaims = commands.add_parser("reclaim")
    reclaims.add_argument("--nodes", type=int, default=500)
    options = parser.parse_args()
    build.build("control-plane")
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        asyncio.run(run(options, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
