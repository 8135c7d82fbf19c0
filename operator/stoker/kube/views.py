"""What of a Kubernetes pod is read where the spec's own model would read too much, and as what it is kept.

Pods are read without their environment and commands, which are never read of a stored pod and are most of it: 47
instead of 173 µs and 10 instead of 22 KiB a pod of 20 variables (tools/bench/kube.py). One watch of all pods feeds both
caches, `Pod` and `OtherPod`: a selector by label would let who may edit a pod take it out of our sight, finalizer and
all. A change of another's pod costs 72 µs (40 where it had a watch and a model of its own). Called by `wire` and main
files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping

from pydantic import ConfigDict, Field

from stoker.spec.meta import Kind, Resource
from stoker.spec.other_pod import OTHER_PODS, OtherContainer, OtherPod, OtherPodSpec
from stoker.spec.pod import PODS, Container, EnvVar, Pod, PodSpec
from stoker.spec.worker_pod import is_ours, worker_name
from stoker.store.cache import WatchCache
from stoker.store.cache_part import CachePart
from stoker.store.clock import Clock
from stoker.store.port import Store

_UNREAD = "(unread)"  # no field of Kubernetes is called that


class _ContainerView(Container):
    model_config = ConfigDict(validate_by_name=False)

    command: tuple[str, ...] = Field(default=(), validation_alias=_UNREAD)
    env: tuple[EnvVar, ...] = Field(default=(), validation_alias=_UNREAD)


class _PodSpecView(PodSpec):
    containers: tuple[_ContainerView, ...]
    init_containers: tuple[_ContainerView, ...] | None = None


class PodView(Pod):
    """A pod as it is watched; what is created or updated is a `Pod`."""

    spec: _PodSpecView


CLUSTER_PODS = Kind(Resource, "v1", "Pod", "pods", namespaced=True)
"""Every pod of the cluster: a `Pod` if it is Stoker's, else an `OtherPod`."""


def kept(pod: PodView) -> Pod | OtherPod | None:
    """None: it is no job's, takes no room, and has not the name of a worker's pod."""
    meta, spec = pod.metadata, pod.spec
    if is_ours(meta):
        return pod
    takes_room = spec.node_name and not pod.ended
    if not takes_room and worker_name(meta.name) is None:
        return None
    lean = OtherPodSpec(node_name=spec.node_name)
    if takes_room:
        lean = OtherPodSpec(
            node_name=spec.node_name,
            containers=tuple(map(_lean, spec.containers)),
            init_containers=tuple(map(_lean, spec.init_containers or ())),
            overhead=spec.overhead or {},
            resources=spec.resources or OtherPodSpec().resources,
        )
    return OtherPod(metadata=meta.model_copy(update={"labels": {}, "annotations": {}}), spec=lean)


def cluster_pods(
    store: Store, clock: Clock, indexes: Mapping[str, Callable[[Pod], Iterable[Hashable]]] | None = None
) -> tuple[WatchCache[Pod], WatchCache[OtherPod]]:
    """Stoker's pods, by `indexes`, and all others as far as they concern it. Run both; either keeps both current."""
    whole, turn = WatchCache(store, CLUSTER_PODS, clock=clock), asyncio.Lock()
    return CachePart(whole, PODS, turn, indexes=indexes), CachePart(whole, OTHER_PODS, turn)


def _lean(container: Container) -> OtherContainer:
    return OtherContainer(resources=container.resources, restart_policy=container.restart_policy or "")
