"""GPU health as exporters, kubelets and administrators report it, kept as GPUNodeHealth objects.

Owns creating and writing the objects, at most one write a change, and when each exporter last reported, in this
process's memory; what readings mean is `stoker.life.gpu_health`'s. Called by `routes/report_usage.py`,
`routes/nodes.py`, `device_health.py` and `usage/gang_watch.py`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from stoker.life.burn_in import due_at
from stoker.life.gpu_health import assessed, with_blame, with_unhealthy
from stoker.spec.gpu_health import HEALTH, GpuBlame, GpuHealth, GPUNodeHealth, GPUNodeHealthSpec, GPUNodeHealthStatus
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key, ObjectMeta, OwnerReference
from stoker.spec.names import BURN_IN
from stoker.spec.node import GPUNode
from stoker.spec.pod import Pod
from stoker.spec.reports import GpusReport
from stoker.spec.rest_nodes import BurnInState, ExporterState, NodeBurnIn
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import AlreadyExists, Conflict, NotFound, Store

from .jobs.submit import READ_OWN_WRITE_S

log = logging.getLogger(__name__)

_MANAGER = "api"
_TRIES = 4
SILENT_S = 180.0
"""An exporter posts how its GPUs are every minute at least (`stoker.exporter.reporting.gpus_post`)."""


class UnknownNode(Exception):
    """The node is not known here (yet)."""


class GpuHealthKeeper:
    def __init__(
        self,
        store: Store,
        nodes: WatchCache[GPUNode],
        health: WatchCache[GPUNodeHealth],
        clock: Clock,
        *,
        on_cluster: bool,
        burn_in: bool,
    ) -> None:
        """`on_cluster`: nodes come and go there; what is known of their GPUs goes with them. `burn_in`: the operator
        tests GPUs before they come back."""
        self._store, self._nodes, self._health, self._clock = store, nodes, health, clock
        self._on_cluster, self._burn_in = on_cluster, burn_in
        self._began_s = clock.monotonic()
        self._reported_s: dict[str, float] = {}
        """By node."""

    async def take(self, report: GpusReport) -> None:
        """Nothing is written where nothing has changed. Raises: UnknownNode, StoreError."""
        node = self._nodes.get(Key("", report.node))
        if node is None:
            raise UnknownNode(report.node)
        if report.node not in self._reported_s:  # nodes that are gone are forgotten when one comes
            self._reported_s = {one: at_s for one, at_s in self._reported_s.items() if self._nodes.get(Key("", one))}
        self._reported_s[report.node] = self._clock.monotonic()
        await self._change(
            node.key, node, lambda known: assessed(known, report, self._clock.now(), burn_in=self._burn_in)
        )

    async def take_devices(self, pod: Pod) -> bool:
        """What the kubelet reports of a worker's GPUs. False: no exporter has reported them yet.

        Raises: StoreError.
        """
        key = Key("", pod.spec.node_name)
        health = self._health.get(key)
        if health is None or not health.status.gpus:  # the object is made before its status is written
            return False
        await self._change(key, None, lambda known: with_unhealthy(known, pod, self._clock.now()))
        return True

    async def take_blame(self, node: str, uuid: str, new: GpuBlame) -> None:
        """A gang was held back by the GPU. Raises: StoreError."""
        await self._change(Key("", node), None, lambda known: with_blame(known, uuid, new))

    def exporter(self, node: GPUNode) -> ExporterState | None:
        """Whether the node's exporter reports. None: it has nothing to report there."""
        if all(gpu.simulated for gpu in node.status.gpus):
            return None
        reported_s = self._reported_s.get(node.metadata.name)
        if reported_s is None:
            health = self._health.get(node.key)
            if health is None or not health.status.gpus:
                return ExporterState.MISSING
            reported_s = self._began_s  # it has reported to the process before this one
        silent = self._clock.monotonic() - reported_s > SILENT_S
        return ExporterState.SILENT if silent else ExporterState.REPORTS

    def burn_ins(self, node: GPUNode, tests: Mapping[str, TrainingJob]) -> Iterator[NodeBurnIn]:
        """Where the burn-ins of its GPUs stand. `tests`: those that are under way, by the uuid of what they test."""
        health = self._health.get(node.key)
        if health is None:
            return
        failed = {one.gpu: one.reason for one in health.spec.cordons if one.by == BURN_IN}
        causes_of = {gpu.uuid: causes for gpu, causes in health.sick()}
        for gpu in health.status.gpus:
            known = NodeBurnIn(gpu=gpu.uuid, index=gpu.index, state=BurnInState.WAITING)
            if job := tests.get(gpu.uuid):
                yield known.model_copy(update={"state": BurnInState.TESTING, "job": str(job.key)})
            elif gpu.uuid in failed:
                yield known.model_copy(update={"state": BurnInState.FAILED, "message": failed[gpu.uuid]})
            elif self._burn_in and (due := due_at(health, gpu, causes_of.get(gpu.uuid, ()))) is not None:
                yield known.model_copy(update={"due_at": due})

    async def change_spec(self, node: GPUNode, change: Callable[[GPUNodeHealthSpec], GPUNodeHealthSpec]) -> None:
        """Change what an administrator decides, and see it in `nodes`. Raises: StoreError."""
        for _ in range(_TRIES):
            try:
                known = await self._stored(node.key) or await self._create(node)
                new = await self._store.update(HEALTH, known.model_copy(update={"spec": change(known.spec)}))
            except (Conflict, NotFound, AlreadyExists):
                continue
            with contextlib.suppress(TimeoutError):
                await self._health.at_least(new.metadata.resource_version, timeout_s=READ_OWN_WRITE_S)
            return
        raise Conflict(f"{HEALTH} {node.metadata.name} kept changing")

    async def _change(
        self, key: Key, node: GPUNode | None, change: Callable[[GPUNodeHealth], tuple[GpuHealth, ...]]
    ) -> None:
        """`node`: the object is made if it is not there. Raises: StoreError."""
        known = self._health.get(key)
        for _ in range(_TRIES):
            try:
                if known is None and node is not None:
                    known = await self._create(node)
                if known is not None:
                    await self._write(known, change(known))
            except (Conflict, NotFound, AlreadyExists):
                known = await self._stored(key)  # the cache was behind
            else:
                return
        raise Conflict(f"{HEALTH} {key.name} kept changing")

    async def _write(self, known: GPUNodeHealth, gpus: tuple[GpuHealth, ...]) -> None:
        if gpus == known.status.gpus:
            return
        status = GPUNodeHealthStatus(gpus=gpus)
        await self._store.patch_status(
            HEALTH,
            known.key,
            status.dump(),
            manager=_MANAGER,
            uid=known.uid,
            resource_version=known.metadata.resource_version,
        )
        for gpu, causes in known.model_copy(update={"status": status}).sick():
            log.warning(
                "GPU %d of node %s (%s): %s", gpu.index, known.key.name, gpu.uuid, ", ".join(c.code for c in causes)
            )

    async def _create(self, node: GPUNode) -> GPUNodeHealth:
        owner = OwnerReference(api_version="v1", kind="Node", name=node.metadata.name, uid=node.uid)
        owners = (owner,) if self._on_cluster else ()
        made = GPUNodeHealth(metadata=ObjectMeta(name=node.metadata.name, owner_references=owners))
        return await self._store.create(HEALTH, made)

    async def _stored(self, key: Key) -> GPUNodeHealth | None:
        try:
            return await self._store.get(HEALTH, key)
        except NotFound:
            return None
