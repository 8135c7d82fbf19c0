"""Stands in for scheduler and kubelets on a control plane without nodes: pods are bound, run for so long and end.

Makes the writes that they would: binding, Running, the end; a pod that is deleted ends at once and goes. Called by
`life`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from stoker.kube.client import MERGE_PATCH, Call, KubeClient
from stoker.kube.limit import RequestLane
from stoker.spec.meta import Key
from stoker.spec.pod import Pod
from stoker.spec.worker import ExitRecord
from stoker.store.cache import Change, WatchCache
from stoker.store.port import Conflict, NotFound

_WRITE = Call("mimic", "Pod", lane=RequestLane.WRITE)


class Mimic:
    def __init__(
        self, client: KubeClient, pods: WatchCache[Pod], life_of: Callable[[Pod], tuple[str, float] | None]
    ) -> None:
        """`life_of`: on which node a pod runs, and how long (seconds); None: not known yet."""
        self._client, self._life_of = client, life_of
        self._stopped: dict[Key, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        """Of a pod whose life was given up: it would stay as it is, and its job with it."""
        self.unsubscribe = pods.subscribe(self._changed)

    def _changed(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is None:
            return
        stopped = self._stopped.get(pod.key)
        if stopped is None:
            stopped = self._stopped[pod.key] = asyncio.Event()
            task = asyncio.create_task(self._live(pod, stopped))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        if pod.metadata.deletion_timestamp is not None:
            stopped.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self.failure = self.failure or task.exception()

    async def _live(self, pod: Pod, stopped: asyncio.Event) -> None:
        path = f"/api/v1/namespaces/{pod.key.namespace}/pods/{pod.key.name}"
        while (life := self._life_of(pod)) is None and not stopped.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        try:
            if life is not None:
                await self._run(path, pod.uid, *life, stopped)
            await stopped.wait()
            with_no_grace = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            await self._client.request(_WRITE, "DELETE", path, body=encoded(with_no_grace))
        except NotFound:
            return

    async def _run(self, path: str, uid: str, node: str, run_s: float, stopped: asyncio.Event) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": path.rpartition("/")[2]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        with suppress(Conflict):  # it is being deleted, or the answer to the same request was lost
            await self._client.request(_WRITE, "POST", f"{path}/binding", body=encoded(binding))
        began, began_s = now(), time.time()
        await self._write_status(path, "Running", {"running": {"startedAt": began}}, began)
        try:
            await asyncio.wait_for(stopped.wait(), run_s)
        except TimeoutError:
            phase, code = "Succeeded", 0
        else:
            phase, code = "Failed", 75
        record = ExitRecord(  # the supervisor's: an end without it counts as a lost node
            pod_uid=uid, started_at=began_s, finished_at=time.time(), stop_requested=bool(code), exit_code=code
        )
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": began, "finishedAt": now()}
        ended["message"] = record.model_dump_json(by_alias=True)
        await self._write_status(path, phase, {"terminated": ended}, began)

    async def _write_status(self, path: str, phase: str, state: dict[str, Any], began: str) -> None:
        ready = "True" if phase == "Running" else "False"
        status = {
            "phase": phase,
            "startTime": began,
            "conditions": [
                {"type": name, "status": ready if "Ready" in name else "True", "lastTransitionTime": began}
                for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [
                {
                    "name": "worker",
                    "state": state,
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "image": "image",
                    "imageID": "sha256:0",
                }
            ],
        }
        body = encoded({"status": status})
        await self._client.request(_WRITE, "PATCH", f"{path}/status", body=body, content_type=MERGE_PATCH)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def encoded(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
