"""`Client`: the SDK; each answer of `Calls` as one of the spec's models.

    from stoker import Client

    with Client() as stoker:
        job = stoker.submit({"trainer": {"recipe": "image-classification"}})
        print(stoker.wait(job.metadata.name).status.phase)

Owns types: what comes back is validated at once; fields of a newer server are left aside. Raises everywhere: `ApiError`
(the server refuses), `Unreachable`. Time-outs and repeats are those of `Calls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from pydantic import BaseModel, ValidationError

from stoker.spec.event import Event
from stoker.spec.job import TrainingJob, TrainingJobSpec
from stoker.spec.names import DEFAULT_PROJECT
from stoker.spec.phase import ENDED, Phase
from stoker.spec.queue import QueueSpec
from stoker.spec.reasons import Explanation
from stoker.spec.rest import (
    FileList,
    JobCurves,
    JobUsageReport,
    NodeWithUsage,
    QueueWithUsage,
    ServerVersion,
    UsageReport,
    WhoAmI,
)
from stoker.spec.runtime import TrainingRuntime, TrainingRuntimeSpec

from .calls import DEFAULT_TIMEOUT_S, Calls, log_params, named
from .config import find_server
from .errors import TimedOut, unreadable
from .following import Following
from .log_lines import LogChunk
from .updates import JobChanged, JobEnded, JobReader, JobUpdate

_M = TypeVar("_M", bound=BaseModel)


class Client:
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
        body = self.calls.submit(
            _submission(spec, name), project=project, idempotency_key=idempotency_key, dry_run=dry_run
        )
        return self._parse(TrainingJob, body)

    def list(
        self,
        *,
        project: str | None = None,
        queue: str | None = None,
        phases: Iterable[Phase | str] = (),
        user: str | None = None,
        gpu_type: str | None = None,
        since: str | None = None,
        label: str | None = None,
        text: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> Iterator[TrainingJob]:
        """Jobs, newest first or by `sort`, page by page as they are read. Project `-` means all that the token may see.

        `since`: created since, a duration before now ('7d') or a date. `label`: as kubectl selects. `text`: part of a
        name, label, command, message or reason. `sort`: created, started, finished, duration, priority, gpus or name,
        with a '-' before it backwards.
        """
        conditions = {"user": user, "gpuType": gpu_type, "since": since, "label": label, "text": text, "sort": sort}
        for item in self.calls.jobs(project=project, queue=queue, phases=phases, limit=limit, **conditions):
            yield self._parse(TrainingJob, item)

    def get(self, name: str, *, project: str | None = None) -> TrainingJob:
        return self._parse(TrainingJob, self.calls.job(name, project))

    def cancel(self, name: str, *, project: str | None = None) -> TrainingJob:
        """The job, stopping for good. Cancelling what has ended changes nothing."""
        return self._parse(TrainingJob, self.calls.act(name, "cancel", project))

    def suspend(self, name: str, *, project: str | None = None) -> TrainingJob:
        """The job, saving and stopping until `resume`."""
        return self._parse(TrainingJob, self.calls.act(name, "suspend", project))

    def resume(self, name: str, *, project: str | None = None) -> TrainingJob:
        return self._parse(TrainingJob, self.calls.act(name, "resume", project))

    def retry(self, name: str, *, project: str | None = None) -> TrainingJob:
        """A Failed or Cancelled job, queued once more."""
        return self._parse(TrainingJob, self.calls.act(name, "retry", project))

    def clone(
        self,
        name: str,
        changes: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        new_name: str | None = None,
        from_checkpoint: bool = False,
    ) -> TrainingJob:
        """A new job like this one, with the same code. `changes`: a merge patch of its spec."""
        body = {"spec": changes or {}, "fromCheckpoint": from_checkpoint}
        body |= {"metadata": {"name": new_name}} if new_name else {}
        return self._parse(TrainingJob, self.calls.clone(name, body, project=project))

    def patch(self, name: str, spec: Mapping[str, Any], *, project: str | None = None) -> TrainingJob:
        """The job after a merge patch of what may change of its spec: priority, suspend, cancel, retryGeneration."""
        return self._parse(TrainingJob, self.calls.patch_job(name, {"spec": spec}, project))

    def delete(self, name: str, *, project: str | None = None) -> None:
        """Delete the job with its events and logs; one that runs is stopped first, with its grace."""
        self.calls.delete_job(name, project)

    def explain(self, name: str, *, project: str | None = None) -> Explanation:
        """Why the job is where it is, and what would start it."""
        return self._parse(Explanation, self.calls.explain(name, project))

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
        with following.closed_after(timeout):
            for update in following:
                if isinstance(update, JobChanged) and update.job.status.phase in wanted:
                    return update.job
                if isinstance(update, JobEnded):
                    return self.get(name, project=project)
        raise TimedOut(f"{name} is not {' or '.join(sorted(wanted))} after {timeout:g} s; it goes on")

    # streams

    def events(self, name: str, *, project: str | None = None) -> Following[JobUpdate]:
        """What happens to the job, from its first event to its end, and the job itself at each change."""
        return Following(self.calls.wire, f"{self.calls.job_path(name, project)}/events", JobReader(self._parse))

    def past_events(self, name: str, *, project: str | None = None) -> tuple[Event, ...]:
        """The job's events so far."""
        return self._all(Event, self.calls.events(name, project))

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
        """A worker's log in whole lines; cut connections are resumed at the very byte.

        With `follow` on to the job's end, over all its attempts unless `attempt` names one. `tail`: only the last
        lines of what is there already. `since`: only what was written since, a duration before now ('10m') or a time.
        `timestamps`: chunks say when they were written (`at`).
        """
        return self.calls.logs(
            name,
            worker=worker,
            attempt=attempt,
            tail=tail,
            since=since,
            timestamps=timestamps,
            follow=follow,
            project=project,
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
        return self.calls.log_bytes(name, log_params(worker, attempt, tail), project)

    # files

    def files(self, name: str, folder: str = "", *, project: str | None = None) -> FileList:
        """What the job has left in its output folder so far, or below `folder` there."""
        return self._parse(FileList, self.calls.files(name, folder, project=project))

    def fetch_file(self, name: str, path: str, to: BinaryIO, *, project: str | None = None) -> None:
        """Write one of the job's files to `to`, an open file, going on where a cut connection had stopped."""
        self.calls.fetch_file(name, path, to, project=project)

    # usage

    def usage(
        self,
        by: Iterable[str] = ("project",),
        *,
        since: str = "30d",
        until: str | None = None,
        project: str | None = None,
        queue: str | None = None,
        user: str | None = None,
        limit: int | None = None,
    ) -> UsageReport:
        """GPU time summed by `by`: user, queue, project, job, model, day, hour.

        `since`, `until`: a duration before now (`30d`) or an ISO date or time. `project` None: all that the token sees.
        """
        body = self.calls.usage(by, since=since, until=until, project=project, queue=queue, user=user, limit=limit)
        return self._parse(UsageReport, body)

    def job_usage(self, name: str, *, project: str | None = None) -> JobUsageReport:
        """What the job has had, per GPU; also of one that is deleted (the newest of the name)."""
        return self._parse(JobUsageReport, self.calls.job_usage(name, project))

    def metrics(
        self,
        name: str,
        *,
        metric: str | None = None,
        attempt: int | None = None,
        since: str | None = None,
        until: str | None = None,
        points: int | None = None,
        project: str | None = None,
    ) -> JobCurves:
        """What the job has reported over its steps; also of one that is deleted (the newest of the name).

        `since`, `until`: a duration before now, a date or a time. `points`: at most so many of each metric.
        """
        wanted = {"metric": metric, "attempt": attempt, "since": since, "until": until, "points": points}
        return self._parse(JobCurves, self.calls.job_metrics(name, project, **wanted))

    # code

    def ship(self, folder: str | os.PathLike[str], *, project: str | None = None) -> str:
        """The digest of the folder's code, to be given as `trainer.code`; the project's server holds it then.

        What .gitignore and .stokerignore say is left out (docs/code.md), and what the server has is not sent again.

            code = stoker.ship(".")
            stoker.submit({"trainer": {"command": ["python", "train.py"], "code": code}})

        Raises: BadInput where the folder can't be shipped, saying why; and as everywhere ApiError, Unreachable.
        """
        from .code.bundle import read_folder

        bundle = read_folder(folder)
        self.calls.send_code(bundle, project=project)
        return bundle.digest

    # queues, runtimes, nodes, identity

    def queues(self) -> tuple[QueueWithUsage, ...]:
        return self._all(QueueWithUsage, self.calls.items("queues"))

    def queue(self, name: str) -> QueueWithUsage:
        return self._parse(QueueWithUsage, self.calls.item("queues", name))

    def put_queue(self, name: str, spec: QueueSpec | Mapping[str, Any]) -> QueueWithUsage:
        """The queue, created or with its whole spec replaced (role admin)."""
        return self._parse(QueueWithUsage, self.calls.put("queues", name, _plain(spec)))

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
        return self._parse(TrainingRuntime, self.calls.put("runtimes", name, _plain(spec)))

    def delete_runtime(self, name: str) -> None:
        """Raises: ApiError 409 while jobs that have not ended name it."""
        self.calls.delete("runtimes", name)

    def nodes(self) -> tuple[NodeWithUsage, ...]:
        return self._all(NodeWithUsage, self.calls.items("nodes"))

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


def _submission(spec: TrainingJobSpec | Mapping[str, Any], name: str | None) -> dict[str, Any]:
    body = dict(spec) if isinstance(spec, Mapping) and "spec" in spec else {"spec": _plain(spec)}
    if name is not None:
        body["metadata"] = named(body.get("metadata"), name)
    return body


def _plain(spec: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """As the user wrote it: defaults stay the server's business."""
    if isinstance(spec, BaseModel):
        return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dict(spec)
