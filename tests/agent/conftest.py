"""A whole node in a temporary folder: the embedded store, the agent, real supervisors. Nothing outlives a test."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from stoker.local.agent import NodeAgent, VirtualGpus
from stoker.local.datadir import DataDir
from stoker.local.store import EmbeddedStore
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.names import FINALIZER_OUTCOME, GPU_RESOURCE
from stoker.spec.pod import PODS, Container, EnvVar, Pod, PodSpec, Resources
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.seam import Seam

NODE = "node-1"


def pod(
    name, command, *, gpus=0, memory="0", job=None, worker=0, workers=1, grace_s=5, node=NODE, finalizers=(), **env
):
    """A pod as the controller renders it."""
    job = job or name
    variables = {
        "STOKER_JOB": job,
        "STOKER_JOB_UID": f"uid-of-{job}",
        "STOKER_PROJECT": "default",
        "STOKER_ATTEMPT": "1",
        "STOKER_WORKER": str(worker),
        "STOKER_WORKERS": str(workers),
        "STOKER_LAUNCH_MODE": "once",
        "STOKER_RANKS": "1",
        "STOKER_GRACE_SECONDS": str(grace_s),
        **env,
    }
    limits = {GPU_RESOURCE: str(gpus)} if gpus else {}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", finalizers=finalizers),
        spec=PodSpec(
            node_name=node,
            termination_grace_period_seconds=grace_s,
            containers=(
                Container(
                    command=tuple(map(str, command)),
                    env=tuple(EnvVar(name=k, value=v) for k, v in variables.items()),
                    resources=Resources(requests={"cpu": "1", "memory": memory}, limits=limits),
                ),
            ),
        ),
    )


def live_processes(datadir):
    """Pids of living processes whose worker's folder is below `datadir`: supervisors and what they started."""
    mark = str(datadir.path).encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{name}/environ").read_bytes()
                cmdline = Path(f"/proc/{name}/cmdline").read_bytes()
                if b"STOKER_PROGRESS_FILE=" + mark in environ or (b"--lock-fd" in cmdline and mark in cmdline):
                    found.append(int(name))
    return found


class Node:
    """The agent and its store, started and stopped at will over the same folder."""

    def __init__(self, datadir, gpus):
        self.datadir, self.inventory, self.seam = datadir, VirtualGpus(gpus), Seam()
        self.jobs = set()
        self.keep_results_s = None
        self.memory_groups = None
        self.stack = None

    async def start(self):
        self.stack = stack = contextlib.AsyncExitStack()
        clock = SystemClock()
        self.store = await stack.enter_async_context(EmbeddedStore(self.datadir.db, clock, Seam()))
        self.pods = WatchCache(self.store, PODS, clock=clock)
        self.agent = NodeAgent(
            self.store,
            self.pods,
            self.datadir,
            node_name=NODE,
            inventory=self.inventory,
            clock=clock,
            seam=self.seam,
            report_url=lambda: "",
            report_key=b"key",
            cpu_milli=2000,
            memory_bytes=1 << 30,
            log_bytes=1 << 30,
            job_exists=lambda uid: uid in self.jobs,
            keep_results_s=self.keep_results_s,
            memory_groups=self.memory_groups,
        )
        tasks = [asyncio.create_task(self.pods.run()), asyncio.create_task(self.agent.run())]

        async def end():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        stack.push_async_callback(end)
        await self.agent.ready.wait()
        return self

    async def stop(self):
        if self.stack is not None:
            await self.stack.aclose()
            self.stack = None

    async def create(self, *args, **kwargs):
        return await self.store.create(PODS, pod(*args, **kwargs))

    async def until(self, name, condition, timeout_s=20):
        """The pod, once `condition(pod)` holds."""
        key = Key("default", name)

        def holds(cache):
            found = cache.get(key)
            return found is not None and condition(found)

        await self.pods.wait_for(holds, timeout_s=timeout_s)
        return self.pods.get(key)

    async def ended(self, name, timeout_s=30):
        return await self.until(name, lambda pod: pod.ended, timeout_s)

    async def running(self, name):
        return await self.until(name, lambda pod: pod.status.phase == "Running")

    async def gone(self, name):
        key = Key("default", name)
        await self.pods.wait_for(lambda cache: cache.get(key) is None, timeout_s=20)

    async def delete(self, name, grace_s=None):
        await self.store.delete(PODS, Key("default", name), grace_s=grace_s)

    async def release(self, name):
        """Take the finalizer off, as the operator does when it has the outcome."""
        found = await self.store.get(PODS, Key("default", name))
        metadata = found.metadata.model_copy(update={"finalizers": ()})
        await self.store.update(PODS, found.model_copy(update={"metadata": metadata}))

    def folder(self, found):
        return self.datadir.worker(found.uid)


async def eventually(condition, timeout_s=20.0, what="the condition"):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        await asyncio.sleep(0.01)
    return value


@pytest.fixture
def datadir(tmp_path):
    datadir = DataDir(tmp_path / "data")
    yield datadir
    deadline = time.monotonic() + 10
    while left := live_processes(datadir):
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # a supervisor whose agent was stopped before it is still our child
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
async def make_node(datadir):
    nodes = []

    async def make(gpus=2):
        node = Node(datadir, gpus)
        nodes.append(node)
        return await node.start()

    yield make
    for node in nodes:
        await node.stop()


@pytest.fixture
async def node(make_node):
    return await make_node()


@pytest.fixture
def make_pod():
    return pod


@pytest.fixture
def wait_until():
    return eventually


@pytest.fixture
def processes(datadir):
    return lambda: live_processes(datadir)


@pytest.fixture
def finalizer():
    return (FINALIZER_OUTCOME,)
