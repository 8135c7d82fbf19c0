"""The client's calls about usage, and what the server answers. `Client` is the only one who has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from stoker.spec.meta import StatusModel
from stoker.spec.usage import JobUsage

from .wire import Wire

if TYPE_CHECKING:
    M = TypeVar("M", bound=BaseModel)


class Hint(StatusModel):
    """What to ask for instead. Codes: UnusedGpus, Idle, Compute, Memory."""

    code: str
    text: str


class UsageRow(StatusModel):
    """GPU time summed; of what stands in the fields that were asked for. None: not known, never 0."""

    user: str | None = None
    queue: str | None = None
    project: str | None = None
    job: str | None = None
    job_uid: str | None = None
    model: str | None = None
    day: str | None = None
    hour: str | None = None
    simulated: bool = False
    jobs: int = 0
    gpu_hours: float = 0.0
    busy_hours: float | None = None
    sm_active_hours: float | None = None
    tensor_active_hours: float | None = None
    idle_hours: Mapping[str, float] = {}
    unobserved_hours: float = 0.0
    energy_kwh: float | None = None
    cost: float | None = None
    unpriced_hours: float = 0.0
    efficiency: float | None = None


class UsageReport(StatusModel):
    """`rows`: of whole hours from `since` to before `until`; `totals`: over all of them, simulated GPUs apart."""

    since: datetime
    until: datetime
    by: tuple[str, ...]
    currency: str | None = None
    rows: tuple[UsageRow, ...] = ()
    totals: tuple[UsageRow, ...] = ()
    truncated: bool = False
    hints: tuple[Hint, ...] = ()


class GpuUsage(StatusModel):
    attempt: int
    worker: int
    node: str = ""
    uuid: str
    model: str = ""
    method: str = ""
    usage: JobUsage


class JobUsageReport(StatusModel):
    """What one job has had. `deleted`: the job itself is gone."""

    project: str
    job: str
    job_uid: str = ""
    queue: str = ""
    user: str = ""
    deleted: bool = False
    usage: JobUsage
    efficiency: float | None = None
    cost: float | None = None
    unpriced_hours: float = 0.0
    currency: str | None = None
    gpus: tuple[GpuUsage, ...] = ()
    truncated: bool = False
    hints: tuple[Hint, ...] = ()
    note: str = ""


class UsageCalls:
    """`usage` and `job_usage`."""

    project: str
    _wire: Wire

    if TYPE_CHECKING:

        def _parse(self, model: type[M], body: Any) -> M: ...

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
        wanted = {"by": ",".join(by), "since": since, "until": until, "project": project, "queue": queue, "user": user}
        params = {name: value for name, value in wanted.items() if value is not None}
        if limit is not None:
            params["limit"] = str(limit)
        return self._parse(UsageReport, self._wire.call("GET", "/v1/usage", params=params).body)

    def job_usage(self, name: str, *, project: str | None = None) -> JobUsageReport:
        """What the job has had, per GPU; also of one that is deleted (the newest of the name)."""
        path = f"/v1/projects/{quote(project or self.project, safe='')}/jobs/{quote(name, safe='')}/usage"
        return self._parse(JobUsageReport, self._wire.call("GET", path).body)
