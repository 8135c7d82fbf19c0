"""Each of the api's writes that could lose or double a job, times each fault, with the api as a process of its own.

A client submits without a name under an idempotency key, cancels and deletes, and repeats what got no definite answer.
`make sweep` runs it and writes docs/reliability.md's table.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.harness import free_port
from tests.support.testbed.faulty_proxy import Fault, FaultyProxy, proxied
from tests.support.testbed.sweep_table import write_table

from .cluster import API, Bed

WRITES = ("create trainingjobs", "update trainingjobs", "delete trainingjobs")
LIFE_S = 90.0
AGAIN = frozenset({409, 412, 429, 500, 502, 503, 504})


class Api:
    """`python -m stoker_api.main` behind the proxy; killed and started anew where the proxy says so."""

    def __init__(self, proxy: FaultyProxy, kubeconfig: Path, folder: Path) -> None:
        self._proxy, self._kubeconfig, self._folder = proxy, kubeconfig, folder
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "stoker_api.main", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--data", str(self._folder / "data"), "--kubeconfig", str(self._kubeconfig)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "KUBE"))}
        with (self._folder / "api.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=env)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def keep(self) -> None:
        """Until cancelled: what is dead behind the proxy is killed in earnest, and followed by another."""
        while True:
            await self._proxy.dead.wait()
            await self.kill()
            self._proxy.revive()
            await self.start()


class Person:
    """Who submits: repeats a call until its answer is definite."""

    def __init__(self, port: int, token: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=30, headers={"Authorization": f"Bearer {token}"}
        )

    async def call(self, method: str, path: str, **how: Any) -> httpx.Response:
        async with asyncio.timeout(LIFE_S):
            while True:
                try:
                    answer = await self._http.request(method, path, **how)
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                    continue
                if answer.status_code not in AGAIN:
                    return answer
                await asyncio.sleep(min(1.0, float(answer.headers.get("Retry-After", "0.2"))))

    async def live(self, bed: Bed, name: str) -> None:
        """One life. Raises: AssertionError naming the broken promise."""
        jobs, spec = "/v1/projects/alpha/jobs", {"trainer": {"command": ["true"]}}
        body = {"metadata": {"generateName": f"{name}-"}, "spec": spec}
        made = await self.call("POST", jobs, json=body, headers={"Idempotency-Key": name})
        assert made.status_code in (200, 201), f"submit: {made.status_code} {made.text}"
        full = made.json()["metadata"]["name"]
        there = await stored(bed, name)
        assert [job["metadata"]["name"] for job in there] == [full], f"{len(there)} jobs of one submit"
        done = await self.call("POST", f"{jobs}/{full}/cancel")
        assert done.status_code in (200, 202), f"cancel: {done.status_code} {done.text}"
        assert [job["spec"]["cancel"] for job in await stored(bed, name)] == [True], "not cancelled"
        gone = await self.call("DELETE", f"{jobs}/{full}")
        assert gone.status_code in (200, 202, 204, 404), f"delete: {gone.status_code} {gone.text}"
        assert await stored(bed, name) == [], "not deleted"

    async def close(self) -> None:
        await self._http.aclose()


async def stored(bed: Bed, name: str) -> list[dict[str, Any]]:
    """What the cluster holds, whatever the api says."""
    text = await asyncio.to_thread(bed.cluster.kubectl, "get", "trainingjobs", "-n", "alpha", "-o", "json")
    return [job for job in json.loads(text)["items"] if job["metadata"]["name"].startswith(f"{name}-")]


@pytest.mark.sweep
@pytest.mark.timeout(3600)
async def test_no_fault_at_a_write_loses_or_doubles_a_job(the_bed: Bed, tmp_path: Path) -> None:
    cells: dict[tuple[str, Fault], str] = {}
    the_bed.cluster.kubectl("apply", "-f", "-", stdin=QUEUE)
    async with proxied(the_bed.kubeconfig(tmp_path, API)) as (proxy, kubeconfig):
        api = Api(proxy, kubeconfig, tmp_path)
        await api.start()
        keeping = asyncio.create_task(api.keep())
        person = Person(api.port, the_bed.tokens["alice"])
        try:
            await person.live(the_bed, "plain")
            for row, write in enumerate(WRITES):
                for column, fault in enumerate(Fault):
                    name, began = f"c{row}x{column}", time.monotonic()
                    proxy.arm(write, f"{name}-", fault)
                    try:
                        await person.live(the_bed, name)
                        assert proxy.hit.is_set(), "the write was never made"
                        cells[write, fault] = f"{time.monotonic() - began:.1f} s"
                    except (AssertionError, TimeoutError) as error:
                        cells[write, fault] = f"**{error or 'no definite answer'}**"
                    print(f"{write} x {fault}: {cells[write, fault]}", flush=True)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await api.kill()
            await person.close()
    write_table("api", cells)
    assert not [f"{cell}: {said}" for cell, said in cells.items() if said.startswith("**")]


QUEUE = json.dumps({"apiVersion": "stoker.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"}, "spec": {}})
