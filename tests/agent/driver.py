"""A node for a process of its own, which tests kill: `main(data folder, seam rules, pods.json)`.

Creates the pods that are not there yet, runs the agent until all have ended, and prints what became of them.
"""

import asyncio
import json
import sys
from pathlib import Path

from stoker.local.agent import NodeAgent, VirtualGpus
from stoker.local.datadir import DataDir
from stoker.local.store import EmbeddedStore
from stoker.spec.pod import PODS, Pod
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import AlreadyExists
from stoker.store.seam import Seam


async def main(path, rules, pods_path):
    datadir, clock = DataDir(Path(path)), SystemClock()
    datadir.lock()
    seam = Seam.parse(rules, trace=Path(path) / "trace")
    async with EmbeddedStore(datadir.db, clock, seam) as store:
        wanted = [Pod.model_validate(data) for data in json.loads(Path(pods_path).read_text())]
        for pod in wanted:
            try:
                await store.create(PODS, pod)
            except AlreadyExists:
                pass
        pods = WatchCache(store, PODS, clock=clock)
        agent = NodeAgent(
            store,
            pods,
            datadir,
            node_name="node-1",
            inventory=VirtualGpus(2),
            clock=clock,
            seam=seam,
            report_url=lambda: "",
            report_key=b"key",
            cpu_milli=2000,
            memory_bytes=1 << 30,
            log_bytes=1 << 30,
            job_exists=lambda _uid: True,
        )
        tasks = [asyncio.create_task(pods.run()), asyncio.create_task(agent.run())]
        await pods.wait_for(lambda cache: len(cache) == len(wanted) and all(pod.ended for pod in cache.values()))
        for pod in pods.values():
            print(json.dumps([pod.metadata.name, pod.uid, pod.status.phase, pod.status.reason]))
            print(pod.status.reason, pod.status.message, file=sys.stderr)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
