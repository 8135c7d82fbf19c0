"""`Calls`: every route of the REST API, its answer as JSON. `Client` makes models of the answers; the CLI prints them.

Owns routes, parameters, and what a repeat means that finds the work done. Imports no model: a command that lists starts
in less than half the time. Every call has a time-out and is repeated over lost connections and busy servers (a POST
too: it is idempotent, or carries an idempotency key). Raises everywhere: `ApiError` (it refuses), `Unreachable`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar
from urllib.parse import quote

from stoker.spec.phase import ENDED

from .config import Endpoint
from .errors import ApiError, unreadable
from .wire import ConnectionLost, Reply, Wire

if TYPE_CHECKING:
    from .code.bundle import Bundle
    from .code.sending import Progress
    from .following import Following
    from .log_lines import LogChunk

J = TypeVar("J")
DEFAULT_TIMEOUT_S = 15.0
FILES_LISTED = 10_000
_PAGE = 500
_CHANGE_TRIES = 5
_WARNING = re.compile(r'299 \S+ "([^"]*)"')


class Calls:
    """A connection to one server. May be shared between threads. `project`: where a call names none."""

    def __init__(self, endpoint: Endpoint, project: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.endpoint, self.project = endpoint, project
        self.wire = Wire(endpoint, timeout_s=timeout_s)
        self.on_warning: Callable[[str], object] = lambda text: None
        """Called with what the server warns of though it takes a job or queue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.wire.close()

    # jobs

    def submit(
        self,
        body: Mapping[str, Any],
        *,
        project: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Any:
        return self._submitted(self.jobs_path(project), body, idempotency_key, dry_run)

    def clone(
        self,
        name: str,
        body: Mapping[str, Any],
        *,
        project: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Any:
        """The new job. `body`: as the api's `CloneRequest`."""
        return self._submitted(f"{self.job_path(name, project)}/clone", body, idempotency_key, dry_run)

    def _submitted(self, path: str, body: Mapping[str, Any], key: str | None, dry_run: bool) -> Any:
        reply = self.wire.call(
            "POST",
            path,
            params={"dryRun": "true"} if dry_run else None,
            body=body,
            headers={"Idempotency-Key": key or str(uuid.uuid4())},
        )
        return self._warned(reply)

    def jobs(
        self,
        *,
        project: str | None = None,
        queue: str | None = None,
        phases: Iterable[str] = (),
        limit: int | None = None,
        **conditions: str | None,
    ) -> Iterator[Any]:
        """Page by page as they are read. `conditions`: user, gpuType, since, label, text and sort (docs/api.md)."""
        params = _list_params(queue, phases, min(limit or _PAGE, _PAGE), conditions)
        left = limit
        while True:
            page = self._get(self.jobs_path(project), params)
            items = page.get("items", ())
            yield from items[:left]
            if left is not None:
                left -= len(items)
            cursor = page.get("nextCursor")
            if not cursor or (left is not None and left <= 0):
                return
            params["cursor"] = str(cursor)

    def watch_jobs(
        self,
        job: Callable[[Any], J],
        *,
        limit: int,
        project: str | None = None,
        queue: str | None = None,
        phases: Iterable[str] = (),
        **conditions: str | None,
    ) -> Following[list[J]]:
        """The first `limit` (at most 500) of `jobs`, made by `job`: as they are, then all of them at each change."""
        from .following import Following
        from .job_lists import JobListReader

        params = _list_params(queue, phases, limit, conditions)
        return Following(self.wire, self.jobs_path(project), JobListReader(job), params=params)

    def job(self, name: str, project: str | None = None) -> Any:
        return self._get(self.job_path(name, project))

    def act(self, name: str, verb: str, project: str | None = None) -> Any:
        """The job after `verb`: cancel, suspend, resume, retry."""
        try:
            return self.wire.call("POST", f"{self.job_path(name, project)}/{verb}").body
        except ApiError as error:
            # Our first try may have been carried out and its answer lost: then the repeat finds the job queued again.
            if verb != "retry" or error.status != 409 or error.tries == 1:
                raise
            job = self.job(name, project)
            if job["status"]["phase"] in ENDED:
                raise
            return job

    def patch_job(self, name: str, patch: Mapping[str, Any], project: str | None = None) -> Any:
        """The job after a merge patch of what may change."""
        return self.wire.call("PATCH", self.job_path(name, project), body=patch).body

    def delete_job(self, name: str, project: str | None = None) -> None:
        self._delete(self.job_path(name, project))

    def explain(self, name: str, project: str | None = None) -> Any:
        return self._get(f"{self.job_path(name, project)}/explain")

    def events(self, name: str, project: str | None = None) -> list[Any]:
        """The job's events so far."""
        return self._items(f"{self.job_path(name, project)}/events")

    def log_bytes(self, name: str, params: Mapping[str, str], project: str | None = None) -> Iterator[bytes]:
        """A worker's log so far, byte for byte as it was printed. `params`: of `log_params`."""
        path = f"{self.job_path(name, project)}/logs"
        try:
            with self.wire.stream(path, params=params, headers={"Accept": "text/plain"}) as stream:
                yield from stream.chunks()
        except ConnectionLost as lost:
            raise self.wire.unreachable(lost) from None

    def files(self, name: str, folder: str = "", *, limit: int = FILES_LISTED, project: str | None = None) -> Any:
        """What the job has left in its output folder: `items` by path, and whether it is `truncated`."""
        params = {"limit": str(limit), **({"folder": folder} if folder else {})}
        return self._get(f"{self.job_path(name, project)}/files", params)

    def fetch_file(self, name: str, path: str, to: BinaryIO, *, project: str | None = None) -> None:
        """Write one of the job's files to `to`, going on where a cut connection had stopped."""
        from .fetching import fetch

        fetch(self.wire, f"{self.job_path(name, project)}/files/{quote(path)}", to)

    def logs(
        self,
        name: str,
        *,
        worker: int = 0,
        attempt: int | None = None,
        tail: int | None = None,
        since: str | None = None,
        timestamps: bool = False,
        follow: bool = True,
        project: str | None = None,
    ) -> Following[LogChunk]:
        """A worker's log in whole lines; cut connections are resumed at the very byte."""
        from .following import Following
        from .log_lines import LogReader

        return Following(
            self.wire,
            f"{self.job_path(name, project)}/logs",
            LogReader(worker, from_start=tail is None and since is None),
            params=log_params(worker, attempt, tail, follow=follow, since=since, timestamps=timestamps),
            once=frozenset({"tailLines", "since"}),
            endless=follow,
        )

    # usage

    def usage(self, by: Iterable[str], *, project: str | None, limit: int | None, **filters: str | None) -> Any:
        """`filters`: since, until, queue, user."""
        wanted = {"by": ",".join(by), "project": project, "limit": None if limit is None else str(limit), **filters}
        return self._get("/v1/usage", {name: value for name, value in wanted.items() if value is not None})

    def job_usage(self, name: str, project: str | None = None) -> Any:
        return self._get(f"{self.job_path(name, project)}/usage")

    def job_metrics(self, name: str, project: str | None = None, **wanted: object) -> Any:
        """`wanted`: metric, attempt, since, until, firstStep, lastStep, points."""
        query = {key: str(value) for key, value in wanted.items() if value is not None}
        return self._get(f"{self.job_path(name, project)}/metrics", query)

    # queues, runtimes, nodes; the server

    def items(self, kind: str) -> list[Any]:
        """All `queues`, `runtimes` or `nodes`."""
        return self._items(f"/v1/{kind}")

    def item(self, kind: str, name: str) -> Any:
        return self._get(f"/v1/{kind}/{quote(name, safe='')}")

    def put(self, kind: str, name: str, spec: Mapping[str, Any]) -> Any:
        """The object, created or with its whole spec replaced."""
        return self.wire.call("PUT", f"/v1/{kind}/{quote(name, safe='')}", body={"spec": spec}).body

    def change(self, kind: str, name: str, change: Callable[[dict[str, Any]], None]) -> Any:
        """The object, created or with its spec as `change` leaves it, which is called again if another change comes
        between."""
        path = f"/v1/{kind}/{quote(name, safe='')}"
        for left in reversed(range(_CHANGE_TRIES)):
            spec, headers = dict[str, Any](), dict[str, str]()
            try:
                there = self.wire.call("GET", path)
                spec, headers = there.body["spec"], {"If-Match": there.headers["etag"]}
            except ApiError as error:
                if error.status != 404:
                    raise
            change(spec)
            try:
                return self._warned(self.wire.call("PUT", path, body={"spec": spec}, headers=headers))
            except ApiError as error:
                if error.status != 412 or not left:
                    raise
        raise AssertionError("unreachable")

    def delete(self, kind: str, name: str) -> str:
        """What keeps it for the moment, for people; '' if it is gone."""
        body = self._delete(f"/v1/{kind}/{quote(name, safe='')}")
        return str(body.get("message", "")) if body else ""

    def cordon(self, node: str, gpu: str = "", reason: str = "") -> Any:
        """The node, which, or whose GPU by uuid or number, takes no new jobs from now on."""
        path = f"/v1/nodes/{quote(node, safe='')}/cordon"
        return self.wire.call("POST", path, body={"gpu": gpu, "reason": reason}).body

    def uncordon(self, node: str, gpu: str = "") -> Any:
        """The node, which takes new jobs again; the GPU, whatever was wrong with it."""
        return self.wire.call("POST", f"/v1/nodes/{quote(node, safe='')}/uncordon", body={"gpu": gpu}).body

    def whoami(self) -> Any:
        return self._get("/v1/whoami")

    def sign_in_ticket(self) -> str:
        """Stands for this client's token in a link of the web page: good once, for a minute."""
        return str(self.wire.call("POST", "/v1/sign-in-tickets").body["ticket"])

    def version(self) -> Any:
        return self._get("/version")

    # secrets

    def secrets(self, project: str | None = None) -> list[Any]:
        return self._items(self._secret_path(project))

    def set_secret(self, name: str, key: str, value: str, project: str | None = None) -> Any:
        """The secret as it is shown, with this value set."""
        return self.wire.call("PUT", self._secret_path(project, name, key), body={"value": value}).body

    def delete_secret(self, name: str, key: str | None = None, project: str | None = None) -> None:
        """Delete one of its values; without a key all of it."""
        self._delete(self._secret_path(project, name, *([] if key is None else [key])))

    def _secret_path(self, project: str | None, *names: str) -> str:
        return "/".join((f"{self._project_path(project)}/secrets", *(quote(name, safe="") for name in names)))

    # code

    def send_code(self, bundle: Bundle, *, project: str | None = None, progress: Progress | None = None) -> int:
        """How many bytes it took to make the server hold the bundle; 0 if it held it already."""
        from .code.sending import send

        return send(self.wire, f"{self._project_path(project)}/code", bundle, progress)

    # helpers

    def _warned(self, reply: Reply) -> Any:
        for text in _WARNING.findall(reply.headers.get("warning", "")):
            self.on_warning(text)
        return reply.body

    def jobs_path(self, project: str | None) -> str:
        return f"{self._project_path(project)}/jobs"

    def job_path(self, name: str, project: str | None) -> str:
        return f"{self.jobs_path(project)}/{quote(name, safe='')}"

    def _project_path(self, project: str | None) -> str:
        return f"/v1/projects/{quote(project or self.project, safe='')}"

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        body = self.wire.call("GET", path, params=params).body
        if not isinstance(body, dict):
            raise unreadable(self.endpoint.url, "no JSON object")
        return body

    def _items(self, path: str) -> list[Any]:
        return list(self._get(path).get("items", ()))

    def _delete(self, path: str) -> Any:
        try:
            return self.wire.call("DELETE", path).body
        except ApiError as error:
            # As with retry: gone may mean that our own first try was carried out.
            if error.status != 404 or error.tries == 1:
                raise
            return None


def _list_params(
    queue: str | None, phases: Iterable[str], limit: int, conditions: Mapping[str, str | None]
) -> dict[str, str]:
    asked = {"limit": str(limit), "queue": queue, "phase": ",".join(phases), **conditions}
    return {name: value for name, value in asked.items() if value}


def log_params(
    worker: int,
    attempt: int | None,
    tail: int | None,
    *,
    follow: bool = False,
    since: str | None = None,
    timestamps: bool = False,
) -> dict[str, str]:
    params = {"worker": str(worker), "follow": "true" if follow else "false"}
    if attempt is not None:
        params["attempt"] = str(attempt)
    if tail is not None:
        params["tailLines"] = str(tail)
    if since is not None:
        params["since"] = since
    if timestamps:
        params["timestamps"] = "true"
    return params


def named(metadata: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """`metadata` with this name, in place of a name to be generated."""
    return {key: value for key, value in (metadata or {}).items() if key != "generateName"} | {"name": name}
