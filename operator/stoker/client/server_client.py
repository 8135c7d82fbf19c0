"""`ServerClient`: a connection to one server, and what it has beside jobs: queues, runtimes, nodes, secrets, identity.

Owns types: an answer is validated at once. `Client` is built on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from stoker.spec.names import DEFAULT_PROJECT, SECRET_VALUE
from stoker.spec.queue import QueueSpec
from stoker.spec.rest import ProjectSecret, QueueWithUsage, ServerVersion, WhoAmI
from stoker.spec.rest_nodes import NodeWithUsage
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec

from .calls import DEFAULT_TIMEOUT_S, Calls
from .config import find_server
from .errors import unreadable

_M = TypeVar("_M", bound=BaseModel)


class ServerClient:
    """A connection to one server. May be shared between threads.

    Without arguments: the server and token of STOKER_SERVER and STOKER_TOKEN, else what `stoker up` runs here.
    `project` is the one meant where a call names none. Units: `timeout` in seconds, for each try of each call.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        project: str = DEFAULT_PROJECT,
        calls: Calls | None = None,
    ) -> None:
        """`calls`: the connection to use, in place of all the others."""
        self.calls = calls or Calls(find_server(server, token), project, timeout_s=timeout)
        self.endpoint, self.project = self.calls.endpoint, self.calls.project

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.calls.wire.close()

    # queues, runtimes, nodes, identity

    def queues(self) -> tuple[QueueWithUsage, ...]:
        return self._all(QueueWithUsage, self.calls.items("queues"))

    def queue(self, name: str) -> QueueWithUsage:
        return self._parse(QueueWithUsage, self.calls.item("queues", name))

    def put_queue(self, name: str, spec: QueueSpec | Mapping[str, Any]) -> QueueWithUsage:
        """The queue, created or with its whole spec replaced (role admin)."""
        return self._parse(QueueWithUsage, self.calls.put("queues", name, plain(spec)))

    def delete_queue(self, name: str) -> str:
        """What keeps it for the moment (jobs that have not ended use it), for people; '' if it is gone."""
        return self.calls.delete("queues", name)

    def runtimes(self) -> tuple[TrainingRuntime, ...]:
        """How workers may run on this cluster; none on one machine."""
        return self._all(TrainingRuntime, self.calls.items("runtimes"))

    def runtime(self, name: str) -> TrainingRuntime:
        return self._parse(TrainingRuntime, self.calls.item("runtimes", name))

    def put_runtime(self, name: str, spec: TrainingRuntimeSpec | Mapping[str, Any]) -> TrainingRuntime:
        """The runtime, created or with its whole spec replaced (an administrator's)."""
        return self._parse(TrainingRuntime, self.calls.put("runtimes", name, plain(spec)))

    def delete_runtime(self, name: str) -> None:
        """Raises: ApiError 409 while jobs that have not ended name it."""
        self.calls.delete("runtimes", name)

    def secrets(self, *, project: str | None = None) -> tuple[ProjectSecret, ...]:
        """The project's secrets: names, keys, dates. Their values are shown to no one."""
        return self._all(ProjectSecret, self.calls.secrets(project))

    def set_secret(
        self, name: str, value: str, *, key: str = SECRET_VALUE, project: str | None = None
    ) -> ProjectSecret:
        """The secret, made or with this value set; jobs get it by `secrets` (or `secretEnv` of a spec)."""
        return self._parse(ProjectSecret, self.calls.set_secret(name, key, value, project))

    def delete_secret(self, name: str, *, key: str | None = None, project: str | None = None) -> None:
        """Delete one of its values; without `key` all of it."""
        self.calls.delete_secret(name, key, project)

    def nodes(self) -> tuple[NodeWithUsage, ...]:
        """What jobs hold of each, and what is wrong with its GPUs (`status.sick`)."""
        return self._all(NodeWithUsage, self.calls.items("nodes"))

    def node(self, name: str) -> NodeWithUsage:
        return self._parse(NodeWithUsage, self.calls.item("nodes", name))

    def cordon(self, node: str, *, gpu: str = "", reason: str = "") -> NodeWithUsage:
        """Close the node, or its GPU of this uuid or number, to new jobs (an administrator's)."""
        return self._parse(NodeWithUsage, self.calls.cordon(node, gpu, reason))

    def uncordon(self, node: str, *, gpu: str = "") -> NodeWithUsage:
        """Open the node again; or the GPU, which is healthy then, whatever was wrong with it until now."""
        return self._parse(NodeWithUsage, self.calls.uncordon(node, gpu))

    def whoami(self) -> WhoAmI:
        return self._parse(WhoAmI, self.calls.whoami())

    def version(self) -> ServerVersion:
        return self._parse(ServerVersion, self.calls.version())

    # helpers

    def _all(self, model: type[_M], items: Iterable[Any]) -> tuple[_M, ...]:
        return tuple(self._parse(model, item) for item in items)

    def _parse(self, model: type[_M], body: Any) -> _M:
        """`body`: JSON as text or read."""
        try:
            return model.model_validate_json(body) if isinstance(body, str) else model.model_validate(body)
        except ValidationError as error:
            raise unreadable(self.endpoint.url, error.errors()[0]["loc"]) from None


def plain(spec: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """As the user wrote it: defaults stay the server's business."""
    if isinstance(spec, BaseModel):
        return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dict(spec)
