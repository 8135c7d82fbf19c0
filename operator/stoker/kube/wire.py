"""How each kind stands in the Kubernetes API: its path, its name there, and what its bytes are decoded into. Pure.

Called by `store.KubeStore`, `codec` (bytes to objects) and `manifests` (objects to bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.names import GROUP
from stoker.spec.node import NODES
from stoker.spec.pod import Pod
from stoker.store.port import NotFound

from .nodes import NodeView, gpu_node
from .views import CLUSTER_PODS, PodView, kept

T = TypeVar("T", bound=Resource)


@dataclass(frozen=True)
class WireKind(Generic[T]):
    """One kind as the API server has it."""

    kind: Kind[T]
    root: str
    """`/api/v1` or `/apis/<group>/<version>`."""
    plural: str
    api_version: str
    name: str
    """The API's own name of the kind (Node, where ours is GPUNode)."""
    view: type[Resource]
    """What bytes are decoded into."""
    convert: Callable[[Any], T | None] | None = None
    """From the view to the kind's model where they differ; None: it is none of the objects that the kind means."""
    read_only: bool = False

    @property
    def ours(self) -> bool:
        """Of Stoker's own API group: we know every field, so we may replace the whole."""
        return self.api_version.startswith(f"{GROUP}/")

    def collection(self, namespace: str | None) -> str:
        """The path of all objects, of one namespace or of all."""
        if namespace and self.kind.namespaced:
            return f"{self.root}/namespaces/{quote(namespace, safe='')}/{self.plural}"
        return f"{self.root}/{self.plural}"

    def path(self, key: Key) -> str:
        """One object's path. Raises: NotFound for a key that no object can have."""
        if self.kind.namespaced != bool(key.namespace) or any(part in ("", ".", "..") for part in _parts(key)):
            raise NotFound(f"there is no {self.kind} {key}")
        return f"{self.collection(key.namespace)}/{quote(key.name, safe='')}"


def wire(kind: Kind[T]) -> WireKind[T]:
    """Nodes are Kubernetes' own, read as GPUNodes; everything else is what its `Kind` says."""
    if kind.kind == NODES.kind:
        nodes = cast("Callable[[Any], T]", gpu_node)
        return WireKind(kind, "/api/v1", "nodes", "v1", "Node", NodeView, convert=nodes, read_only=True)
    if kind == CLUSTER_PODS:
        pods = cast("Callable[[Any], T | None]", kept)
        return WireKind(kind, "/api/v1", "pods", "v1", "Pod", PodView, convert=pods, read_only=True)
    root = f"/api/{kind.api_version}" if "/" not in kind.api_version else f"/apis/{kind.api_version}"
    view = PodView if kind.model is Pod else kind.model
    return WireKind(kind, root, kind.plural, kind.api_version, kind.kind, view)


def _parts(key: Key) -> tuple[str, ...]:
    return (key.namespace, key.name) if key.namespace else (key.name,)
