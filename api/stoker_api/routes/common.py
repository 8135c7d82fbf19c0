"""What several routes share: parameters, finding a job as the caller may see it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Path
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import HTTPConnection

from stoker.spec.fields import DnsLabel
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.quantity import new_duration
from stoker.spec.queue import Queue
from stoker.spec.rest import QueueUsage
from stoker.spec.rest_nodes import NodeUsage
from stoker.store.port import NotFound
from stoker_api.access import authorize
from stoker_api.bodies import dump
from stoker_api.body_parsing import invalid_fields
from stoker_api.problems import FieldError, Problem, ProblemCode, invalid, not_found
from stoker_api.services import Services
from stoker_api.usage.intake import UsageIntake

LABEL: dict[str, JsonValue] = {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
"""What names look like, for the OpenAPI document; one that does not is that of nothing: 404."""


TIME: dict[str, JsonValue] = {"pattern": "^[0-9][-0-9.:+TZdhms]*$"}
"""A duration before now, or a date or time."""
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def moment(name: str, text: str, now: datetime) -> datetime:
    """The time that the query parameter `name` means. Raises: Problem (422)."""
    try:
        return now - timedelta(seconds=new_duration(text))
    except ValueError:
        pass
    try:
        given = datetime.fromisoformat(text)
        at = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        at = None
    if at is None or not _EARLIEST <= at < _LATEST:
        detail = (
            f"{text!r} is neither a duration ('30d', '12h', '3650d' at most) nor a date or time of the years 1970 to"
            " 9998 ('2026-01-31', '2026-01-31T08:00Z')"
        )
        raise invalid(f"/{name}", detail, place="query")
    return at


def warning_header(texts: Iterable[str]) -> dict[str, str]:
    """As Kubernetes' API server warns: an HTTP Warning header, code 299."""
    header = ", ".join(f'299 - "{text}"' for text in texts).replace("→", "->")  # headers are Latin-1
    return {"Warning": header} if header else {}


def one_or_more(values: Iterable[str]) -> dict[str, JsonValue]:
    """The pattern of values between commas, for the OpenAPI document."""
    either = "|".join(values)
    return {"pattern": f"^({either})(,({either}))*$"}


Project = Annotated[str, Path(max_length=63, description="The project (namespace).", json_schema_extra=LABEL)]
Name = Annotated[str, Path(max_length=63, description="The object's name.", json_schema_extra=LABEL)]
IfMatch = Annotated[str | None, Header(max_length=1024, description="Act only if the ETag is still this.")]
IfNoneMatch = Annotated[str | None, Header(max_length=1024, description="304 if the ETag is still this.")]
RESUME = "Resume behind this id."
LastEventId = Annotated[
    str | None, Header(max_length=64, description=RESUME, json_schema_extra={"pattern": "^[0-9]+$"})
]
LogPosition = Annotated[
    str | None, Header(max_length=40, description=RESUME, json_schema_extra={"pattern": r"^[0-9]+\.[0-9]+$"})
]
Accept = Annotated[str, Header(max_length=1024, description="`text/event-stream` follows it.")]


M = TypeVar("M", bound=BaseModel)
_PROJECT: TypeAdapter[str] = TypeAdapter(DnsLabel)


class QueryModel(BaseModel):
    """Query parameters; one that is not known is refused, since a misspelt dryRun would submit."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


async def no_query_twice(request: HTTPConnection) -> None:
    """Raises: Problem (422) where a query parameter is given twice: which one counts would be a guess."""
    given = [name for name, _ in request.query_params.multi_items()]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        faults = [FieldError(f"/{name}", "is given twice", "query") for name in twice]
        raise Problem(
            ProblemCode.INVALID_FIELDS, f"{faults[0].pointer}: {faults[0].detail}; once is enough.", errors=faults
        )


CHECKS = (Depends(authorize), Depends(no_query_twice))
"""Before every endpoint."""


class Router(APIRouter):
    """Routes as an app takes them: an included router's are made once more for each app, 0.1 s of its first request."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(dependencies=CHECKS, generate_unique_id_function=operation_id, **settings)


def operation_id(route: APIRoute) -> str:
    """`submit_job`: the endpoint's name, which no other has."""
    return route.name


def check_project(project: str) -> None:
    """Raise 422 for a name no namespace can have."""
    try:
        _PROJECT.validate_python(project)
    except ValueError:
        raise invalid(
            "/project", "must be lower-case letters, digits and '-', starting with a letter", place="path"
        ) from None


async def find_job(services: Services, project: str, name: str) -> TrainingJob:
    """The job. Raises: Problem (404, with the message of `access.require`)."""
    key = Key(project, name)
    job = services.deps.jobs.get(key)
    if job is not None:
        return job
    try:
        return await services.deps.store.get(JOBS, key)  # created by another process a moment ago
    except NotFound:
        raise not_found(f"job {name!r} in project {project!r}") from None


def with_usage(obj: Queue | GPUNode, usage: QueueUsage | NodeUsage, **more: object) -> bytes:
    """The object as JSON, with what jobs hold of it."""
    return dump(obj)[:-1] + b"," + json.dumps({"usage": usage.model_dump(by_alias=True), **more}).encode()[1:]


async def job_of_uid(services: Services, project: str, name: str, uid: str) -> TrainingJob | None:
    """The very job that a pod or an exporter names; None: it is gone. Raises: StoreError."""
    job = services.deps.jobs.by_uid(uid)
    if job is None and project and name:
        try:
            job = await services.deps.store.get(JOBS, Key(project, name))  # created by another process a moment ago
        except NotFound:
            return None
    return job if job is not None and job.uid == uid else None


def usage_of(services: Services) -> UsageIntake:
    """Raises: Problem (404) where this server keeps none."""
    if services.usage is None:
        raise Problem(ProblemCode.NOT_FOUND, "This server keeps no usage.")
    return services.usage


def event_number(last_event_id: str | None) -> int:
    """Behind which id a stream of numbered events begins; 0: at its beginning. Raises: Problem (422)."""
    if not last_event_id:
        return 0
    if not (last_event_id.isascii() and last_event_id.isdecimal()):
        raise invalid("/last-event-id", "must be an id this stream gave out: a number", place="header")
    return int(last_event_id)


def wants_events(accept: str) -> bool:
    """The client prefers an event stream."""
    return any(part.partition(";")[0].strip() == "text/event-stream" for part in accept.lower().split(","))


def parse_report(model: type[M], body: bytes) -> M:
    """What a worker or an exporter reports: fields of a newer version are left aside. Raises: Problem (400, 422)."""
    try:
        data = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise Problem(ProblemCode.INVALID_JSON, "The report is no valid JSON.") from None
    try:
        return model.model_validate(_finite(data))
    except ValidationError as error:
        raise invalid_fields(error, root=model, data=data) from None


def _is_finite(value: Any) -> bool:
    """Of a number; whatever else it is says its own fault."""
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _finite(data: Any) -> Any:
    """Without the metrics that are no numbers now: a loss that became NaN must not cost the whole report."""
    if not isinstance(data, dict):
        return data
    progress = data.get("progress")
    if not isinstance(progress, dict) or not isinstance(metrics := progress.get("metrics"), dict):
        return data
    kept = {name: value for name, value in metrics.items() if value is not None and _is_finite(value)}
    return {**data, "progress": {**progress, "metrics": kept}}
