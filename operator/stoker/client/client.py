"""`Client`: every call of the SDK but those about usage and code, which it inherits.

    from stoker import Client

    with Client() as stoker:
        job = stoker.submit({"trainer": {"recipe": "image-classification"}})
        print(stoker.wait(job.metadata.name).status.phase)

Owns routes and types: what comes back is parsed at once into the spec's models; fields of a newer server are left
aside. Every call has a time-out and is repeated over lost connections and busy servers (a POST too: it is idempotent,
or carries an idempotency key). Raises everywhere: `ApiError` (the server refuses), `Unreachable`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from stoker.spec.event import Event
from stoker.spec.job import ENDED, Phase, TrainingJob, TrainingJobSpec
from stoker.spec.names import DEFAULT_PROJECT
from stoker.spec.queue import QueueSpec
from stoker.spec.reasons import Explanation
from stoker.spec.rest import JobEnd, NodeWithUsage, QueueWithUsage, ServerVersion, WhoAmI
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec

from .code.calls import CodeCalls
from .config import Endpoint, find_server
from .errors import ApiError, StokerError, TimedOut, Unreachable
from .following import Following
from .sse import Frame
from .updates import EventSeen, JobChanged, JobEnded, JobUpdate, LogChunk, LogReader
from .usage_calls import UsageCalls
from .wire import Lost, Wire

ALL_PROJECTS = "-"
DEFAULT_TIMEOUT_S = 15.0
_PAGE = 500
_M = TypeVar("_M", bound=BaseModel)

__all__ = ["ALL_PROJECTS", "ApiError", "Client", "StokerError", "TimedOut", "Unreachable"]


class Client(CodeCalls, UsageCalls):
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
    ) -> None:
        self.endpoint: Endpoint = find_server(server, token)
        self.project = project
        self._wire = Wire(self.endpoint, timeout_s=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    # jobs

    def submit(
        self,
        spec: TrainingJobSpec | Mapping[str, Any],
        *,
        project: str | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> TrainingJob:
        """The job as stored; with `dry_run` as it would be stored, all checks done.

        `spec` is a spec, or a whole document with `spec` and `metadata`. Submitting twice with one `idempotency_key`
        gives the same job; without one a key is made for this call, so that its own repeats are safe.
        """
        reply = self._wire.call(
            "POST",
            self._jobs(project),
            params={"dryRun": "true"} if dry_run else None,
            body=_submission(spec, name),
            headers={"Idempotency-Key": idempotency_key or str(uuid.uuid4())},
        )
        return self._parse(TrainingJob, reply.body)

    def list(
        self,
        *,
        project: str | None = None,
        queue: str | None = None,
        phases: Iterable[Phase | str] = (),
        limit: int | None = None,
    ) -> Iterator[TrainingJob]:
        """Jobs, newest first, page by page as they are read. Project `-` means all that the token may see."""
        params = {"limit": str(min(limit or _PAGE, _PAGE))}
        if queue:
            params["queue"] = queue
        if wanted := ",".join(str(phase) for phase in phases):
            params["phase"] = wanted
        left = limit
        while True:
            page = self._object(self._wire.call("GET", self._jobs(project), params=params).body)
            for item in page.get("items", ())[:left]:
                yield self._parse(TrainingJob, item)
            if left is not None:
                left -= len(page.get("items", ()))
            cursor = page.get("nextCursor")
            if not cursor or (left is not None and left <= 0):
                return
            params["cursor"] = str(cursor)

    def get(self, name: str, *, project: str | None = None) -> TrainingJob:
        return self._parse(TrainingJob, self._wire.call("GET", self._job(name, project)).body)

    def cancel(self, name: str, *, project: str | None = None) -> TrainingJob:
        """The job, stopping for good. Cancelling what has ended changes nothing."""
        return self._act(name, "cancel", project)

    def suspend(self, name: str, *, project: str | None = None) -> TrainingJob:
        """The job, saving and stopping until `resume`."""
        return self._act(name, "suspend", project)

    def resume(self, name: str, *, project: str | None = None) -> TrainingJob:
        return self._act(name, "resume", project)

    def retry(self, name: str, *, project: str | None = None) -> TrainingJob:
        """A Failed or Cancelled job, queued once more."""
        try:
            return self._act(name, "retry", project)
        except ApiError as error:
            # Our first try may have been carried out and its answer lost: then the repeat finds the job queued again.
            if error.status != 409 or error.tries == 1:
                raise
            job = self.get(name, project=project)
            if job.status.phase in ENDED:
                raise
            return job

    def delete(self, name: str, *, project: str | None = None) -> None:
        """Delete the job with its events and logs; one that runs is stopped first, with its grace."""
        self._delete(self._job(name, project))

    def explain(self, name: str, *, project: str | None = None) -> Explanation:
        """Why the job is where it is, and what would start it."""
        return self._parse(Explanation, self._wire.call("GET", f"{self._job(name, project)}/explain").body)

    def wait(
        self,
        name: str,
        until: Iterable[Phase | str] = ENDED,
        timeout: float | None = None,
        *,
        project: str | None = None,
    ) -> TrainingJob:
        """The job as soon as its phase is one of `until`, or it has ended. Raises: TimedOut after `timeout` seconds."""
        wanted = {Phase(phase) for phase in until} | ENDED
        following = self.events(name, project=project)
        timer = threading.Timer(timeout, following.close) if timeout is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            for update in following:
                if isinstance(update, JobChanged) and update.job.status.phase in wanted:
                    return update.job
                if isinstance(update, JobEnded):
                    return self.get(name, project=project)
        finally:
            following.close()
            if timer is not None:
                timer.cancel()
        raise TimedOut(f"{name} is not {' or '.join(sorted(wanted))} after {timeout:g} s; it goes on")

    # streams

    def events(self, name: str, *, project: str | None = None) -> Following[JobUpdate]:
        """What happens to the job, from its first event to its end, and the job itself at each change."""
        return Following(self._wire, f"{self._job(name, project)}/events", self._update)

    def past_events(self, name: str, *, project: str | None = None) -> tuple[Event, ...]:
        """The job's events so far."""
        return self._items(Event, f"{self._job(name, project)}/events")

    def logs(
        self,
        name: str,
        *,
        worker: int = 0,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = True,
        project: str | None = None,
    ) -> Following[LogChunk]:
        """A worker's log in whole lines; cut connections are resumed at the very byte.

        With `follow` on to the job's end, over all its attempts unless `attempt` names one. `tail`: only the last
        lines of what is there already.
        """
        params = {"worker": str(worker), "follow": "true" if follow else "false"}
        if attempt is not None:
            params["attempt"] = str(attempt)
        if tail is not None:
            params["tailLines"] = str(tail)

        return Following(
            self._wire,
            f"{self._job(name, project)}/logs",
            LogReader(worker, from_start=tail is None),
            params=params,
            once=frozenset({"tailLines"}),
            endless=follow,
        )

    def log_bytes(
        self,
        name: str,
        *,
        worker: int = 0,
        attempt: int | None = None,
        tail: int | None = None,
        project: str | None = None,
    ) -> Iterator[bytes]:
        """A worker's log so far, byte for byte as it was printed."""
        params = {"worker": str(worker), "follow": "false"}
        if attempt is not None:
            params["attempt"] = str(attempt)
        if tail is not None:
            params["tailLines"] = str(tail)
        try:
            with self._wire.stream(
                f"{self._job(name, project)}/logs", params=params, headers={"Accept": "text/plain"}
            ) as stream:
                yield from stream.chunks()
        except Lost as lost:
            raise self._wire.unreachable(lost) from None

    # queues, runtimes, nodes, identity

    def queues(self) -> tuple[QueueWithUsage, ...]:
        return self._items(QueueWithUsage, "/v1/queues")

    def queue(self, name: str) -> QueueWithUsage:
        return self._parse(QueueWithUsage, self._wire.call("GET", f"/v1/queues/{quote(name, safe='')}").body)

    def put_queue(self, name: str, spec: QueueSpec | Mapping[str, Any]) -> QueueWithUsage:
        """The queue, created or with its whole spec replaced (role admin)."""
        body = {"spec": _plain(spec) if isinstance(spec, QueueSpec) else dict(spec)}
        return self._parse(QueueWithUsage, self._wire.call("PUT", f"/v1/queues/{quote(name, safe='')}", body=body).body)

    def delete_queue(self, name: str) -> str:
        """What keeps it for the moment (jobs that have not ended use it), for people; '' if it is gone."""
        body = self._delete(f"/v1/queues/{quote(name, safe='')}")
        return str(body.get("message", "")) if body else ""

    def runtimes(self) -> tuple[TrainingRuntime, ...]:
        """How workers may run on this cluster; none on one machine."""
        return self._items(TrainingRuntime, "/v1/runtimes")

    def runtime(self, name: str) -> TrainingRuntime:
        return self._parse(TrainingRuntime, self._wire.call("GET", f"/v1/runtimes/{quote(name, safe='')}").body)

    def put_runtime(self, name: str, spec: TrainingRuntimeSpec | Mapping[str, Any]) -> TrainingRuntime:
        """The runtime, created or with its whole spec replaced (an administrator's)."""
        body = {"spec": _plain(spec) if isinstance(spec, TrainingRuntimeSpec) else dict(spec)}
        path = f"/v1/runtimes/{quote(name, safe='')}"
        return self._parse(TrainingRuntime, self._wire.call("PUT", path, body=body).body)

    def delete_runtime(self, name: str) -> None:
        """Raises: ApiError 409 while jobs that have not ended name it."""
        self._delete(f"/v1/runtimes/{quote(name, safe='')}")

    def nodes(self) -> tuple[NodeWithUsage, ...]:
        return self._items(NodeWithUsage, "/v1/nodes")

    def whoami(self) -> WhoAmI:
        return self._parse(WhoAmI, self._wire.call("GET", "/v1/whoami").body)

    def version(self) -> ServerVersion:
        return self._parse(ServerVersion, self._wire.call("GET", "/version").body)

    # helpers

    def _jobs(self, project: str | None) -> str:
        return f"/v1/projects/{quote(project or self.project, safe='')}/jobs"

    def _job(self, name: str, project: str | None) -> str:
        return f"{self._jobs(project)}/{quote(name, safe='')}"

    def _delete(self, path: str) -> Any:
        try:
            return self._wire.call("DELETE", path).body
        except ApiError as error:
            # As with retry: gone may mean that our own first try was carried out.
            if error.status != 404 or error.tries == 1:
                raise
            return None

    def _act(self, name: str, verb: str, project: str | None) -> TrainingJob:
        return self._parse(TrainingJob, self._wire.call("POST", f"{self._job(name, project)}/{verb}").body)

    def _update(self, frame: Frame) -> JobUpdate | None:
        match frame.event:
            case "job":
                return JobChanged(self._parse_json(TrainingJob, frame.data))
            case "event":
                return EventSeen(self._parse_json(Event, frame.data))
            case "end":
                return JobEnded(self._parse_json(JobEnd, frame.data))
        return None

    def _items(self, model: type[_M], path: str) -> tuple[_M, ...]:
        page = self._object(self._wire.call("GET", path).body)
        return tuple(self._parse(model, item) for item in page.get("items", ()))

    def _object(self, body: Any) -> dict[str, Any]:
        if not isinstance(body, dict):
            raise self._odd("no JSON object")
        return body

    def _parse(self, model: type[_M], body: Any) -> _M:
        try:
            return model.model_validate(body)
        except ValidationError as error:
            raise self._odd(str(error.errors()[0]["loc"])) from None

    def _parse_json(self, model: type[_M], text: str) -> _M:
        try:
            return model.model_validate_json(text)
        except ValidationError as error:
            raise self._odd(str(error.errors()[0]["loc"])) from None

    def _odd(self, what: str) -> ApiError:
        return ApiError(
            200,
            "NotStoker",
            f"{self.endpoint.url} answers in words this client does not know ({what}); is one of them older? "
            "`stoker --version` and GET /version show them",
        )


def _submission(spec: TrainingJobSpec | Mapping[str, Any], name: str | None) -> dict[str, Any]:
    if isinstance(spec, TrainingJobSpec):
        body: dict[str, Any] = {"spec": _plain(spec)}
    elif "spec" in spec:
        body = dict(spec)
    else:
        body = {"spec": dict(spec)}
    if name is not None:
        body["metadata"] = named(body.get("metadata"), name)
    return body


def named(metadata: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """`metadata` with this name, in place of a name to be generated."""
    return {key: value for key, value in (metadata or {}).items() if key != "generateName"} | {"name": name}


def _plain(spec: BaseModel) -> dict[str, Any]:
    """As the user wrote it: defaults stay the server's business."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
