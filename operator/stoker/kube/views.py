"""What of a Kubernetes object is read where the spec's own model would read too much.

Pods are read as `spec.pod.Pod` without their environment and commands, which nobody asks a stored pod for and which are
most of it: 47 instead of 173 µs and 10 instead of 22 KiB a pod of 20 variables (tools/bench_kube.py). Called by `wire`.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from stoker.spec.pod import Container, EnvVar, Pod, PodSpec

_UNREAD = "(unread)"  # no field of Kubernetes is called that


class _ContainerView(Container):
    model_config = ConfigDict(validate_by_name=False)

    command: tuple[str, ...] = Field(default=(), validation_alias=_UNREAD)
    env: tuple[EnvVar, ...] = Field(default=(), validation_alias=_UNREAD)


class _PodSpecView(PodSpec):
    containers: tuple[_ContainerView, ...]


class PodView(Pod):
    """A pod as it is watched; what is created or updated is a `Pod`."""

    spec: _PodSpecView
