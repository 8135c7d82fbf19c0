"""`Job`: a training job as it was when it was read, with what can be asked of it.

    job = stoker.run(["python", "train.py"], gpus=1)
    print(job.wait().metrics().columns()["value"][-1])

Owns the verbs that `Client` has for a name, and how a job looks in a notebook. What it shows never changes; each verb
that answers with a job answers with a new one.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from stoker.spec.job import TrainingJob
from stoker.spec.phase import Phase
from stoker.spec.reasons import Explanation
from stoker.spec.rest import FileList, JobCurves, JobUsageReport

from .errors import StokerError
from .progress_text import progress_text

if TYPE_CHECKING:
    from .client import Client
    from .following import Following
    from .log_lines import LogChunk
    from .updates import JobUpdate


class JobFailed(StokerError):
    """The job that was waited for has ended otherwise than it should have. `job`: as it ended."""

    def __init__(self, job: Job) -> None:
        status = job.status
        super().__init__(f"{job.name} is {status.phase}: {' '.join((status.message or status.reason).split())}")
        self.job = job


class Job(TrainingJob):
    _client: Client = PrivateAttr()
    _remarks: tuple[str, ...] = PrivateAttr(default=())

    def __repr__(self) -> str:
        return f"<Job {self.name}: {self._state()}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        rows = [("job", self.name), ("state", self._state()), ("queue", self.spec.queue)]
        if self.gpus:
            rows.append(("GPUs", str(self.gpus)))
        if self.status.output:
            rows.append(("results", self.status.output))
        rows += [("note", text) for text in self._remarks]
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table>"

    def _state(self) -> str:
        status, progress = self.status, self.status.progress
        far = progress_text(progress.step, progress.total_steps, progress.metrics) if progress else ""
        why = " ".join((status.message or status.reason).split())
        says = far if status.phase is Phase.RUNNING or (status.phase is Phase.SUCCEEDED and far) else why
        return f"{status.phase} · {says}" if says else str(status.phase)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """Of a job that `run` has just submitted: warnings, and what looks like an oversight."""
        return self._remarks

    def refresh(self) -> Job:
        """The job as it is now."""
        return self._client.get(self.name, project=self._project)

    def wait(self, timeout: float | None = None) -> Job:
        """The job once it has Succeeded. Raises: JobFailed if it ends otherwise, TimedOut after `timeout` seconds."""
        return self._client.wait(self.name, timeout=timeout, project=self._project)

    def logs(
        self, *, worker: int = 0, attempt: int | None = None, tail: int | None = None, follow: bool = False
    ) -> Following[LogChunk]:
        """What a worker printed so far, with `follow` on to the job's end."""
        return self._client.logs(
            self.name, worker=worker, attempt=attempt, tail=tail, follow=follow, project=self._project
        )

    def events(self) -> Following[JobUpdate]:
        """What happens to it, from its first event to its end, and the job itself at each change."""
        return self._client.events(self.name, project=self._project)

    def metrics(self, metric: str | None = None, *, attempt: int | None = None, since: str | None = None) -> JobCurves:
        """What it has reported over its steps: `pandas.DataFrame(job.metrics().columns())`."""
        return self._client.metrics(self.name, metric=metric, attempt=attempt, since=since, project=self._project)

    def usage(self) -> JobUsageReport:
        """What it has had of GPUs."""
        return self._client.job_usage(self.name, project=self._project)

    def why(self) -> Explanation:
        """Why it is where it is, and what would start it or mend it."""
        return self._client.why(self.name, project=self._project)

    def files(self, folder: str = "") -> FileList:
        """What it has left in its output folder so far, or below `folder` there."""
        return self._client.files(self.name, folder, project=self._project)

    def cp(self, path: str, to: str | os.PathLike[str] = ".") -> int:
        """How many bytes the file had, or the folder with all below it, which is at `to` now, or in that folder."""
        return self._client.cp(self.name, path, to, project=self._project)

    def exec(
        self, command: Sequence[str], *, worker: int = 0, stdin: bytes = b"", timeout: float | None = None
    ) -> CompletedProcess[bytes]:
        """What came of `command` in a running (or held) worker: its `returncode`, `stdout` and `stderr`."""
        return self._client.exec(self.name, command, worker=worker, stdin=stdin, timeout=timeout, project=self._project)

    def port_forward(
        self, port: int, *, local: int = 0, worker: int = 0, address: str = "127.0.0.1"
    ) -> AbstractContextManager[int]:
        """The port here that leads to `port` of a worker, inside of a `with`."""
        return self._client.port_forward(
            self.name, port, local=local, worker=worker, address=address, project=self._project
        )

    def cancel(self) -> Job:
        return self._client.cancel(self.name, project=self._project)

    def suspend(self) -> Job:
        return self._client.suspend(self.name, project=self._project)

    def resume(self) -> Job:
        return self._client.resume(self.name, project=self._project)

    def retry(self) -> Job:
        return self._client.retry(self.name, project=self._project)

    def set(self, spec: Mapping[str, Any]) -> Job:
        """The job after a merge patch of what may change of its spec."""
        return self._client.set(self.name, spec, project=self._project)

    def clone(
        self, changes: Mapping[str, Any] | None = None, *, new_name: str | None = None, from_checkpoint: bool = False
    ) -> Job:
        """A new job like this one, with the same code. `changes`: a merge patch of its spec."""
        return self._client.clone(
            self.name, changes, new_name=new_name, from_checkpoint=from_checkpoint, project=self._project
        )

    def delete(self) -> None:
        self._client.delete(self.name, project=self._project)

    @property
    def _project(self) -> str:
        return self.metadata.namespace
