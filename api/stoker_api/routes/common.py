"""What several routes share: parameters, finding a job as the caller may see it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.store.port import NotFound
from stoker_api.problems import not_found
from stoker_api.services import Services

Project = Annotated[str, Path(max_length=63, description="The project (namespace).")]
Name = Annotated[str, Path(max_length=63)]
IfMatch = Annotated[str | None, Header(max_length=1024, description="Act only if the ETag is still this.")]
IfNoneMatch = Annotated[str | None, Header(max_length=1024)]
LastEventId = Annotated[str | None, Header(max_length=64, description="Resume behind this id.")]
Accept = Annotated[str, Header(max_length=1024)]


class QueryModel(BaseModel):
    """Query parameters; one that is not known is refused, since a misspelt dryRun would submit."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


async def find_job(services: Services, project: str, name: str) -> TrainingJob:
    """The job. Raises: Problem (404, in the words of `access.require`)."""
    key = Key(project, name)
    job = services.deps.jobs.get(key)
    if job is not None:
        return job
    try:
        return await services.deps.store.get(JOBS, key)  # created by another process a moment ago
    except NotFound:
        raise not_found(f"job {name!r} in project {project!r}") from None


def wants_events(accept: str) -> bool:
    """The client prefers an event stream."""
    return any(part.partition(";")[0].strip() == "text/event-stream" for part in accept.lower().split(","))
