"""Kubelets of nodes that are not there: as small as one can be and still honest.

They do with the pods that the cluster's scheduler bound to a node what a real one does in the API (phases, conditions,
container states, removal after the grace), and run nothing. Called by tests/kube and tools/verify/soak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stoker.kube.store import KubeStore
from stoker.spec.event import EVENTS, Event, EventType, ObjectRef
from stoker.spec.meta import ObjectMeta
from stoker.spec.pod import PODS, Pod
from stoker.spec.worker import ExitRecord
from stoker.store.cache import Change, WatchCache
from stoker.store.port import NotFound, StoreError, Unavailable


@dataclass(frozen=True)
class Play:
    """What becomes of a pod on its node."""

    code: int | None = None
    """The exit code of its process; None: it runs until it is stopped, then saves and exits 75."""
    lasts_s: float = 0.0
    """How long a process with a code runs; where it is stopped before, it exits 75 too."""
    out_of_memory: bool = False
    """The kernel ends all its processes, the supervisor too."""
    rejected: tuple[str, str] | None = None
    """The kubelet refuses it: reason and message."""
    image: tuple[str, str] | None = None
    """The container waits for ever: reason and message."""
    mount: str = ""
    """A volume can't be mounted, says an event with these words; the pod waits for ever."""


class Kubelets:
    """Of all nodes of a cluster without any."""

    def __init__(self, store: KubeStore, pods: WatchCache[Pod]) -> None:
        self._store, self._pods = store, pods
        self.script: Callable[[Pod], Play] = lambda _pod: Play(code=0)
        self.silent: set[str] = set()
        """Nodes that do and say nothing any more."""
        self.ran: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}

    def watch(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is not None and pod.spec.node_name and pod.uid not in self._tasks:
            self._stops[pod.uid] = asyncio.Event()
            self._tasks[pod.uid] = asyncio.create_task(self._keep(pod))
        known = change.new or change.old
        if known is not None and known.uid in self._stops and (pod is None or pod.metadata.deletion_timestamp):
            self._stops[known.uid].set()

    async def _keep(self, pod: Pod) -> None:
        play = self.script(pod)
        if play.rejected:
            await self._status(pod, {"phase": "Failed", "reason": play.rejected[0], "message": play.rejected[1]})
        elif play.image or play.mount:
            reason, message = play.image or ("ContainerCreating", "")
            waiting = {"reason": reason, "message": message}
            await self._status(
                pod, {"phase": "Pending", **_container({"waiting": waiting})}, sandbox="False" if play.mount else "True"
            )
            if play.mount:
                await _surely(lambda: self._store.create(EVENTS, _failed_mount(pod, play.mount)))
            await self._deleted(pod)
            gone = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "could not be located"}
            await self._status(pod, {"phase": "Failed", **_container({"terminated": gone})})
        else:
            await self._run(pod, play)
        await self._deleted(pod)
        with suppress(StoreError):
            await _surely(lambda: self._store.delete(PODS, pod.key, uid=pod.uid, grace_s=0))
        del self._stops[pod.uid]

    async def _run(self, pod: Pod, play: Play) -> None:
        self.ran.append(pod.metadata.name)
        at = datetime.now(UTC)
        running = _container({"running": {"startedAt": _text(at)}})
        await self._status(pod, {"phase": "Running", "startTime": _text(at), **running}, sandbox="True")
        code, stopped = play.code, play.code is None
        if code is None:
            await self._deleted(pod)
        elif play.lasts_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deleted(pod), play.lasts_s)
                stopped = True
        if stopped or code is None:
            code = 75
        record = ExitRecord(
            pod_uid=pod.uid,
            started_at=at.timestamp(),
            finished_at=datetime.now(UTC).timestamp(),
            stop_requested=stopped,
            exit_code=code,
        ).model_dump_json(by_alias=True)
        ended: dict[str, Any] = {"exitCode": code, "reason": "Error" if code else "Completed", "message": record}
        if play.out_of_memory:
            ended = {"exitCode": 137, "reason": "OOMKilled"}
        ended |= {"startedAt": _text(at), "finishedAt": _text(datetime.now(UTC))}
        await self._status(
            pod, {"phase": "Failed" if code else "Succeeded", **_container({"terminated": ended})}, sandbox="True"
        )

    async def _deleted(self, pod: Pod) -> None:
        """Return once the pod is under deletion; never on a silent node."""
        await self._stops[pod.uid].wait()
        await self._heard(pod)

    async def _heard(self, pod: Pod) -> None:
        while pod.spec.node_name in self.silent:
            await asyncio.sleep(0.02)

    async def _status(self, pod: Pod, status: dict[str, Any], *, sandbox: str = "") -> None:
        await self._heard(pod)
        if sandbox:
            now = _text(datetime.now(UTC))
            there = self._pods.by_uid(pod.uid) or pod
            kept = [c.model_dump(mode="json", by_alias=True, exclude_none=True) for c in there.status.conditions]
            kept = [c for c in kept if c["type"] != "PodReadyToStartContainers"]
            ready = {"type": "PodReadyToStartContainers", "status": sandbox, "lastTransitionTime": now}
            status = status | {"conditions": [*kept, ready]}
        with suppress(NotFound):
            await _surely(lambda: self._store.patch_status(PODS, pod.key, status, manager="kubelet", uid=pod.uid))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _surely(call: Callable[[], Awaitable[object]]) -> None:
    """Again and again while the API server does not answer, as a kubelet does."""
    while True:
        try:
            await call()
        except Unavailable:
            await asyncio.sleep(0.2)
        else:
            return


def _failed_mount(pod: Pod, words: str) -> Event:
    return Event(
        metadata=ObjectMeta(name=f"{pod.metadata.name}.{pod.uid[:8]}", namespace=pod.metadata.namespace),
        involved_object=ObjectRef(kind="Pod", namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.uid),
        type=EventType.WARNING,
        reason="FailedMount",
        message=words,
        first_timestamp=datetime.now(UTC),
        reporting_component="kubelet",
    )


def _container(state: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "worker", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"containerStatuses": [status]}


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
