"""A thousand trivial jobs to their end, as fast as one client can submit them.

    python -m tools.verify.thousand [--jobs 1000] [--connections 8]

Prints submits/s, p99 of submit and list, finished jobs/s, memory of `stoker up`; every job must be accounted for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from tests.support.harness import Server, machine, rss_mib, running, until

JOB = {"cpu": "100m", "memory": "64Mi", "trainer": {"command": ["/bin/true"], "workingDir": "/"}}


def check(data: Path, jobs: int, connections: int) -> dict[str, object]:
    """Run it; returns the figures. Raises: AssertionError if a job is missing or did not succeed."""
    with running(data, "--cpus", "2") as server:
        rss_before = round(rss_mib(server.process.pid))
        figures = asyncio.run(_submit_all(server, jobs, connections))
        began = figures.pop("began")
        assert isinstance(began, float)
        with server.client() as client:
            last = [time.monotonic()]

            def ended() -> bool:
                last[0] = time.monotonic()
                left = sum(1 for _ in client.ls(phases=("Queued", "Starting", "Running"), limit=1))
                return left == 0

            until(ended, "every job's end", 600, 0.2)
            total_s = last[0] - began
            phases = Counter(job.status.phase.value for job in client.ls())
            attempts = Counter(job.status.attempt for job in client.ls())
        assert phases == {"Succeeded": jobs}, phases
        assert attempts == {1: jobs}, attempts
        until(lambda: not server.workers(), "no process left", 10)
        return figures | {
            "seconds from first submit to last end": round(total_s, 1),
            "finished jobs/s": round(jobs / total_s, 1),
            "RSS of stoker up, MiB (before, after)": (rss_before, round(rss_mib(server.process.pid))),
            "accounted for": f"{phases['Succeeded']} of {jobs}",
        }


async def _submit_all(server: Server, jobs: int, connections: int) -> dict[str, object]:
    token = (server.data / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"spec": JOB}).encode()
    submits: list[float] = []
    lists: list[float] = []
    left = iter(range(jobs))
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client:

        async def submit() -> None:
            for _ in left:
                began = time.perf_counter()
                reply = await client.post("/v1/projects/default/jobs", content=body)
                submits.append(time.perf_counter() - began)
                assert reply.status_code == 201, reply.text

        async def look() -> None:
            while True:
                began = time.perf_counter()
                reply = await client.get("/v1/projects/default/jobs?limit=50")
                lists.append(time.perf_counter() - began)
                assert reply.status_code == 200, reply.text
                await asyncio.sleep(0.1)

        looking = asyncio.create_task(look())
        began = time.monotonic()
        await asyncio.gather(*(submit() for _ in range(connections)))
        took_s = time.monotonic() - began
        looking.cancel()
    return {
        "began": began,
        "submits/s": round(jobs / took_s, 1),
        "submit ms, p50 / p99": (_ms(submits, 0.5), _ms(submits, 0.99)),
        "list ms, p50 / p99": (_ms(lists, 0.5), _ms(lists, 0.99)),
    }


def _ms(seconds: list[float], quantile: float) -> float:
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))], 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=8)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name, value in check(Path(folder) / "data", given.jobs, given.connections).items():
            print(f"{name:45} {value}")
