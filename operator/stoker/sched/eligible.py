"""Which nodes a job's runtime lets its workers on, and what else the runtime makes them ask for.

Owns NodeFilter and Needs: pure values, made once per change of a TrainingRuntime and shared by its jobs' requests.
Called by `request`, `nodes` and the explaining modules.
Source: Kubernetes "Taints and Tolerations"; the ExtendedResourceToleration admission plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import GPUNode, Taint
from stoker.spec.runtime import DEFAULT_RUNTIME, TrainingRuntime

_REPELLING = frozenset({"NoSchedule", "NoExecute"})
NEVER_TOLERATED = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Every pod tolerates these for a while, to survive a hiccup; that is no reason to place one there."""


class Tolerated(NamedTuple):
    key: str
    """Empty: every taint's."""
    exists: bool
    """Whatever its value."""
    value: str
    effect: str
    """Empty: every effect."""

    def covers(self, taint: Taint) -> bool:
        if taint.key in NEVER_TOLERATED:
            return False
        return (
            (not self.effect or self.effect == taint.effect)
            and (self.key == taint.key or (not self.key and self.exists))
            and (self.exists or self.value == taint.value)
        )


class NodeFilter(NamedTuple):
    """The nodes of a runtime. Carries the runtime's name, so that a lane's messages name its own."""

    runtime: str = DEFAULT_RUNTIME
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted. A node must have all of them."""
    tolerated: tuple[Tolerated, ...] = ()

    def lacking(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The labels, as zone=a, that a node does not have."""
        return tuple(f"{name}={value}" for name, value in self.labels if labels.get(name) != value)

    def repelling(self, taints: Iterable[Taint]) -> Taint | None:
        """A taint that keeps the workers off."""
        for taint in taints:
            if taint.effect in _REPELLING and not any(one.covers(taint) for one in self.tolerated):
                return taint
        return None

    def admits(self, node: GPUNode) -> bool:
        """Whether workers may go there, were it ready."""
        return not self.lacking(node.metadata.labels) and self.repelling(node.status.taints) is None


class Needs(NamedTuple):
    """What a runtime adds to its jobs' requests."""

    nodes: NodeFilter
    gpu_nodes: NodeFilter
    """Of jobs with GPUs: they tolerate that a node is tainted for GPUs only."""
    extended: tuple[tuple[str, int], ...]
    """Per worker, sorted."""


_GPU_TAINT = Tolerated(GPU_RESOURCE, True, "", "")


def needs_of(name: str, runtime: TrainingRuntime | None) -> Needs:
    """None: the built-in runtime, which asks for nothing."""
    if runtime is None:
        return Needs(NodeFilter(name), NodeFilter(name, (), (_GPU_TAINT,)), ())
    spec = runtime.spec
    labels = tuple(sorted(spec.node_selector.items()))
    tolerated = tuple(sorted({Tolerated(t.key, t.operator == "Exists", t.value, t.effect) for t in spec.tolerations}))
    with_gpus = tuple(sorted({*tolerated, _GPU_TAINT}))
    extended = tuple(sorted(spec.other_devices.items()))
    return Needs(NodeFilter(name, labels, tolerated), NodeFilter(name, labels, with_gpus), extended)


BUILT_IN = needs_of(DEFAULT_RUNTIME, None)
