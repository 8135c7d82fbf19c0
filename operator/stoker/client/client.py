"""`Client`: the SDK; each answer of `Calls` as one of the spec's models.

    from stoker import Client

    with Client() as stoker:
        job = stoker.run(["python", "train.py"], gpus=1)
        print(job.wait())

Its verbs have the names of the command line's. Owns types: what comes back is validated at once; fields of a newer
server are left aside. Raises everywhere: `ApiError` (the server refuses), `Unreachable`. Time-outs and repeats are
those of `Calls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any, Unpack

from stoker.spec.event import Event
from stoker.spec.job import TrainingJobSpec
from stoker.spec.phase import ENDED, Phase
from stoker.spec.reasons import Explanation
from stoker.spec.rest import FileList, JobCurves, JobUsageReport, UsageReport

from .calls import log_params, named
from .errors import BadInput, TimedOut
from .following import Following
from .job import Job, JobFailed
from .job_options import JobOptions, apply_options
from .log_lines import LogChunk
from .server_client import ServerClient, plain
from .updates import JobChanged, JobEnded, JobReader, JobUpdate

if TYPE_CHECKING:
    from .sessions.connection import WorkerTarget


class Client(ServerClient):
    """What jobs can be asked for; see `ServerClient` for how it finds its server."""

    # jobs

    def run(
        self,
        command: Sequence[str],
        *,
        code: str | os.PathLike[str] | None = None,
        no_code: bool = False,
        install: bool = False,
        name: str | None = None,
        project: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """A job that runs `command` in a copy of the folder `code` (default: the current one); it does not wait.

            job = stoker.run(["python", "train.py", "--lr", "0.1"], gpus=1, env={"TRY": "3"})

        As `stoker run` does: what .gitignore and .stokerignore say is left out, and on this machine `python` is yours.
        What is to be noted of it is in `job.remarks`. `no_code`: ship nothing, run the command where it is. `install`:
        install what the folder's uv.lock or requirements.txt lists where the job runs. Raises: BadInput where the
        folder can't be shipped.
        """
        from .code.placing import place_commands
        from .remarks import remarks

        if isinstance(command, str):
            raise BadInput(f"the command must be a list of arguments: {command.split()}")
        noted: list[str] = []
        calls = copy(self.calls)  # its own ear for warnings: others may share the client

        def note(text: str) -> None:
            noted.append(text)
            self.calls.on_warning(text)

        calls.on_warning = note
        spec: dict[str, Any] = {"trainer": {"command": list(command)}}
        apply_options(spec, options)
        folder = None if code is None else os.fspath(code)
        place_commands(calls, [spec], folder=folder, no_code=no_code, install=install, project=project)
        job = self._job(calls.submit(_submission(spec, name), project=project))
        job._remarks = (*noted, *remarks(self, job, gpus_named="gpus" in options))
        return job

    def submit(
        self,
        spec: TrainingJobSpec | Mapping[str, Any],
        *,
        project: str | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Job:
        """The job as stored; with `dry_run` as it would be stored, all checks done.

        `spec` is a spec, or a whole document with `spec` and `metadata`. Submitting twice with one `idempotency_key`
        gives the same job; without one a key is made for this call, so that its own repeats are safe.
        """
        body = self.calls.submit(
            _submission(spec, name), project=project, idempotency_key=idempotency_key, dry_run=dry_run
        )
        return self._job(body)

    def ls(
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
    ) -> Iterator[Job]:
        """Jobs, newest first or by `sort`, page by page as they are read. Project `-` means all that the token may see.

        `since`: created since, a duration before now ('7d') or a date. `label`: as kubectl selects. `text`: part of a
        name, label, command, message or reason. `sort`: created, started, finished, duration, priority, gpus or name,
        with a '-' before it backwards.
        """
        conditions = {"user": user, "gpuType": gpu_type, "since": since, "label": label, "text": text, "sort": sort}
        for item in self.calls.jobs(project=project, queue=queue, phases=phases, limit=limit, **conditions):
            yield self._job(item)

    def watch(
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
        limit: int = 50,
    ) -> Following[list[Job]]:
        """The first jobs (at most 500) that `ls` would list: as they are, then all of them at each change, at most once
        a second. It goes on until it is closed."""
        conditions = {"user": user, "gpuType": gpu_type, "since": since, "label": label, "text": text, "sort": sort}
        return self.calls.watch_jobs(self._job, project=project, queue=queue, phases=phases, limit=limit, **conditions)

    def get(self, name: str, *, project: str | None = None) -> Job:
        return self._job(self.calls.job(name, project))

    def cancel(self, name: str, *, project: str | None = None) -> Job:
        """The job, stopping for good. Cancelling what has ended changes nothing."""
        return self._job(self.calls.act(name, "cancel", project))

    def suspend(self, name: str, *, project: str | None = None) -> Job:
        """The job, saving and stopping until `resume`."""
        return self._job(self.calls.act(name, "suspend", project))

    def resume(self, name: str, *, project: str | None = None) -> Job:
        return self._job(self.calls.act(name, "resume", project))

    def retry(self, name: str, *, project: str | None = None) -> Job:
        """A Failed or Cancelled job, queued once more."""
        return self._job(self.calls.act(name, "retry", project))

    def clone(
        self,
        name: str,
        changes: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        new_name: str | None = None,
        from_checkpoint: bool = False,
    ) -> Job:
        """A new job like this one, with the same code. `changes`: a merge patch of its spec."""
        body = {"spec": changes or {}, "fromCheckpoint": from_checkpoint}
        body |= {"metadata": {"name": new_name}} if new_name else {}
        return self._job(self.calls.clone(name, body, project=project))

    def set(self, name: str, spec: Mapping[str, Any], *, project: str | None = None) -> Job:
        """The job after a merge patch of what may change of its spec: priority, suspend, cancel, retryGeneration."""
        return self._job(self.calls.patch_job(name, {"spec": spec}, project))

    def delete(self, name: str, *, project: str | None = None) -> None:
        """Delete the job with its events and logs; one that runs is stopped first, with its grace."""
        self.calls.delete_job(name, project)

    def why(self, name: str, *, project: str | None = None) -> Explanation:
        """Why the job is where it is, and what would start it."""
        return self._parse(Explanation, self.calls.explain(name, project))

    def wait(
        self,
        name: str,
        until: Iterable[Phase | str] = (),
        timeout: float | None = None,
        *,
        project: str | None = None,
    ) -> Job:
        """The job as soon as it has Succeeded, or its phase is one of `until`.

        Raises: JobFailed if it ends Failed or Cancelled and `until` does not name that; TimedOut after `timeout`
        seconds.
        """
        wanted = {Phase(phase) for phase in until} | {Phase.SUCCEEDED}
        following = self.events(name, project=project)
        with following.closed_after(timeout):
            for update in following:
                if not isinstance(update, JobChanged | JobEnded):
                    continue
                job = update.job if isinstance(update, JobChanged) else self.get(name, project=project)
                if job.status.phase in wanted:
                    return job
                if job.status.phase in ENDED:
                    raise JobFailed(job)
        raise TimedOut(f"{name} is not {' or '.join(sorted(wanted))} after {timeout:g} s; it goes on")

    # streams

    def events(self, name: str, *, project: str | None = None) -> Following[JobUpdate]:
        """What happens to the job, from its first event to its end, and the job itself at each change."""
        return Following(
            self.calls.wire, f"{self.calls.job_path(name, project)}/events", JobReader(self._parse, self._job)
        )

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

    def cp(self, name: str, path: str, to: str | os.PathLike[str] = ".", *, project: str | None = None) -> int:
        """How many bytes a file of the job's had, or a folder with all below it ('': its whole output); it is at `to`
        now, or in that folder.

        What was there is replaced file by file, each once all of it has come; cut connections are resumed; symbolic
        links are left out. Raises: OSError, ApiError.
        """
        from . import copying

        return copying.copy(self.calls, copying.look(self.calls, name, path, project), to, project).size_bytes

    # sessions with a running worker

    def exec(
        self,
        name: str,
        command: Sequence[str],
        *,
        worker: int = 0,
        stdin: bytes = b"",
        timeout: float | None = None,
        project: str | None = None,
    ) -> CompletedProcess[bytes]:
        """What came of `command` in a running (or held) worker: its `returncode`, `stdout` and `stderr`.

        It runs in the worker's environment and folder, and is ended with this call. Raises: TimedOut after `timeout`
        seconds; StokerError, also where it prints over 64 MiB.
        """
        from .sessions.execution import run_in_worker

        if isinstance(command, str):
            raise BadInput(f"the command must be a list of arguments: {command.split()}")
        return run_in_worker(self._worker(name, worker, project), command, stdin, timeout)

    def port_forward(
        self,
        name: str,
        port: int,
        *,
        local: int = 0,
        worker: int = 0,
        address: str = "127.0.0.1",
        project: str | None = None,
    ) -> AbstractContextManager[int]:
        """The port here (`local`; 0: any that is free) that leads to `port` of a worker, inside of a `with`.

        with stoker.port_forward("digits", 6006) as here:
            print(f"http://127.0.0.1:{here}")
        """
        from .sessions.forwarding import Forwarded, forwarded

        return forwarded(self._worker(name, worker, project), Forwarded(local, port), address)

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

    # helpers

    def _worker(self, name: str, worker: int, project: str | None) -> WorkerTarget:
        from .sessions.connection import WorkerTarget

        return WorkerTarget(self.calls.endpoint, project or self.calls.project, name, worker)

    def _job(self, body: Any) -> Job:
        job = self._parse(Job, body)
        job._client = self
        return job


def _submission(spec: TrainingJobSpec | Mapping[str, Any], name: str | None) -> dict[str, Any]:
    body = dict(spec) if isinstance(spec, Mapping) and "spec" in spec else {"spec": plain(spec)}
    if name is not None:
        body["metadata"] = named(body.get("metadata"), name)
    return body
