"""The client's calls about usage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from stoker.spec.rest import JobUsageReport, UsageReport

from .wire import Wire

if TYPE_CHECKING:
    M = TypeVar("M", bound=BaseModel)


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
