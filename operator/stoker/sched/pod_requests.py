"""What a pod takes of its node, by Kubernetes' own arithmetic.

Owns effective requests: of pods outside Stoker, and of our own where they are not counted by their job's placement.
Pure; called by `foreign_pods`.
Source: Kubernetes `component-helpers/resource` PodRequests (KEP-753 for sidecars, KEP-2837 for pod-level requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from stoker.spec.meta import ObjectMeta
from stoker.spec.names import GPU_RESOURCES
from stoker.spec.other_pod import OtherPod, OtherPodSpec
from stoker.spec.pod import Pod, PodSpec, Resources
from stoker.spec.quantity import observed_quantity
from stoker.spec.worker_pod import WorkerIdentity, identity

from .columns import ForeignClaim
from .gpu_groups import Claim
from .request import ANY_GPU, HUGE, SEVERAL_RESOURCES, GpuFilter, Request

Amounts = dict[str, int]
"""Resource -> units; cpu in thousandths of a core."""

SIDECAR = "Always"
_NOT_EXTENDED = frozenset({"cpu", "memory", "ephemeral-storage"})


class OwnPod(NamedTuple):
    """A bound pod that Stoker sees to, and that has not ended."""

    worker: WorkerIdentity | None
    """None: no job's."""
    node: str
    taken: ForeignClaim


def other_claim(pod: OtherPod) -> ForeignClaim | None:
    """None: it asks for nothing."""
    return _taken(_effective(pod.spec), pod.metadata)


def own_pod(pod: Pod) -> OwnPod | None:
    """None: it holds nothing."""
    if pod.ended or not pod.spec.node_name:
        return None
    taken = _taken(_effective(pod.spec), pod.metadata)
    return None if taken is None else OwnPod(identity(pod.metadata), pod.spec.node_name, taken)


def beyond(taken: ForeignClaim, claim: Request) -> ForeignClaim | None:
    """What a worker's pod takes over what its job claims for it; None: nothing."""
    asked, claimed = taken.claim.request, dict(claim.extended) | {claim.filter.resource: claim.gpus}
    over = Request(
        workers=1,
        gpus=max(0, asked.gpus - claim.gpus),
        cpu=max(0, asked.cpu - claim.cpu),
        memory=max(0, asked.memory - claim.memory),
        filter=asked.filter,
        extended=tuple((name, more) for name, n in asked.extended if (more := n - claimed.get(name, 0)) > 0),
    )
    return (
        ForeignClaim(Claim(1, over), taken.terminating)
        if over.gpus or over.cpu or over.memory or over.extended
        else None
    )


def _effective(spec: PodSpec | OtherPodSpec) -> Amounts:
    most: Amounts = {}  # while the init containers run, one after the other
    sidecars: Amounts = {}
    for container in spec.init_containers or ():
        asked = _requests(container.resources)
        if container.restart_policy == SIDECAR:
            _add(sidecars, asked)
            asked = {}
        _raise(most, _sum((sidecars, asked)))
    total = _sum((sidecars, *(_requests(container.resources) for container in spec.containers)))
    _raise(total, most)
    total |= _requests(spec.resources) if spec.resources else {}
    _add(total, _read(spec.overhead or {}))
    return total


def _taken(total: Amounts, meta: ObjectMeta) -> ForeignClaim | None:
    gpus = {name: count for name, count in total.items() if count and GPU_RESOURCES.fits(name)}
    others = ((name, count) for name, count in total.items() if count and (name not in gpus or len(gpus) > 1))
    request = Request(
        workers=1,
        gpus=sum(gpus.values()),
        cpu=total.get("cpu", 0),
        memory=total.get("memory", 0),
        filter=GpuFilter(resource=next(iter(gpus)) if len(gpus) == 1 else SEVERAL_RESOURCES) if gpus else ANY_GPU,
        extended=tuple(sorted((name, count) for name, count in others if name not in _NOT_EXTENDED)),
    )
    if not (request.gpus or request.cpu or request.memory or request.extended):
        return None
    return ForeignClaim(Claim(1, request), terminating=meta.deletion_timestamp is not None)


def _requests(resources: Resources) -> Amounts:
    """Who names a limit alone requests as much, as the API server's defaults have it."""
    return _read({**resources.limits, **resources.requests})


def _read(amounts: Mapping[str, str]) -> Amounts:
    return {name: _amount(name == "cpu", text) for name, text in amounts.items()}


@lru_cache(maxsize=8192)
def _amount(is_cpu: bool, text: str) -> int:
    value = observed_quantity(text) * (1000 if is_cpu else 1)
    return min(max(int(value.to_integral_value(rounding="ROUND_CEILING")), 0), HUGE)


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        _add(total, part)
    return total


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Amounts, least: Amounts) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0), amount)
