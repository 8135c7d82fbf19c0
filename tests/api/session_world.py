"""Callers and a stand-in for workers, over real sockets: what the tests of sessions share."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from stoker.spec.job import TrainingJob
from stoker.spec.pod import PODS, Pod
from stoker_api.app import create_app
from stoker_api.serve import serving
from stoker_api.sessions.registry import SessionSettings
from stoker_api.sessions.rendezvous import SUBPROTOCOL

BASE = "http://127.0.0.1"
EXEC = {"kind": "exec", "argv": ["cat"]}
FORWARD = {"kind": "forward", "port": 6006}


@contextlib.asynccontextmanager
async def served_with(new_world: Any, **settings: Any) -> AsyncIterator[Any]:
    """A world behind uvicorn, with these settings of sessions."""
    async with new_world() as world:
        world.deps = dataclasses.replace(world.deps, sessions=SessionSettings(**settings))
        world.app = create_app(world.deps)
        async with serving(world.app) as port:
            world.base = f"{BASE}:{port}"
            async with httpx.AsyncClient(base_url=world.base, timeout=10) as world.client:
                yield world


def open_socket(world: Any, path: str, headers: dict[str, str], **how: Any) -> connect:
    how = {"subprotocols": [SUBPROTOCOL], "ping_interval": None, "close_timeout": 1, **how}
    url = world.base.replace("http:", "ws:") + path
    return connect(url, additional_headers=headers, compression=None, proxy=None, **how)


def enter(world: Any, kind: str = "exec", name: str = "one", query: str = "", *, who: str = "alice", **how: Any) -> Any:
    return open_socket(world, f"/v1/projects/alpha/jobs/{name}/{kind}{query}", world.auth(who), **how)


@dataclasses.dataclass
class Runner:
    """A running worker, and hands to play it."""

    world: Any
    job: TrainingJob
    pod: Pod
    token: str

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def reported(self) -> list[str]:
        """What the api says when this worker asks."""
        _, attempt, worker = self.pod.metadata.name.rsplit("-", 2)
        body = {
            "podUid": self.pod.uid, "jobUid": self.job.uid, "project": "alpha", "jobName": self.job.metadata.name,
            "attempt": int(attempt), "worker": int(worker),
        }  # fmt: skip
        answer = await self.world.client.post("/v1/report/alive", headers=self.auth, json=body)
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json().get("sessions", [])
        return found

    async def called(self) -> str:
        """The session someone waits in."""
        for _ in range(500):
            if found := await self.reported():
                return found[-1]
            await asyncio.sleep(0.01)
        raise AssertionError("no caller came")

    def come(self, session: str, **how: Any) -> connect:
        return open_socket(self.world, f"/v1/report/sessions/{session}", self.auth, **how)

    @contextlib.asynccontextmanager
    async def session(
        self, kind: str = "exec", first: Any = None, *, caller: Any = None, worker: Any = None
    ) -> AsyncIterator[tuple[ClientConnection, ClientConnection]]:
        """Both sides of a session that is ready. `caller`, `worker`: how their sockets are opened."""
        opening = first or (EXEC if kind == "exec" else FORWARD)
        async with enter(self.world, kind, self.job.metadata.name, **(caller or {})) as client:
            await client.send(json.dumps(opening))
            async with self.come(await self.called(), **(worker or {})) as side:
                assert json.loads(await side.recv())["kind"] == opening["kind"]
                await side.send('{"ready":true}')
                assert await client.recv() == '{"ready":true}'
                yield client, side

    async def phase(self, phase: str) -> None:
        await self.world.store.patch_status(PODS, self.pod.key, {"phase": phase}, manager="kubelet")
        await self.world.deps.pods.wait_for(lambda pods: pods.get(self.pod.key).status.phase == phase, timeout_s=5)


async def running(world: Any, name: str = "one", **spec: Any) -> Runner:
    """A job whose worker 0 runs."""
    job = await world.status(await world.job(name, **spec), phase="Running", attempt=1)
    pod = await world.pod(job)
    runner = Runner(world, job, pod, await world.worker_token(pod))
    await runner.phase("Running")
    return runner


async def gone(world: Any, left: int = 0) -> None:
    """Wait until no more than `left` sessions are open."""
    for _ in range(500):
        if len(world.services.sessions) <= left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a session is left")


async def refused(connecting: Any) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as info:
        await connecting
    response = info.value.response
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-trace-id"] and response.headers["cache-control"] == "no-store"
    return response.status_code, json.loads(response.body)
