"""The problem codes that an endpoint may answer with: what it declares, and what follows from what it is.

Owns the `@refuses(...)` declaration. The OpenAPI document has them at each operation; the tests of the api hold every
problem they meet against it. Called by `routes` and `openapi.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fastapi.routing import APIRoute

from .access import Access, declared
from .bodies import JSON
from .identity import Right
from .problems import ProblemCode

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__stoker_problems__"

ANYWHERE = (
    ProblemCode.BAD_REQUEST,
    ProblemCode.FOREIGN_HOST,
    ProblemCode.FOREIGN_ORIGIN,
    ProblemCode.REQUEST_TIMEOUT,
    ProblemCode.BODY_TOO_LARGE,
    ProblemCode.INVALID_FIELDS,
    ProblemCode.TOO_MANY_OWN_BODIES,
    ProblemCode.HEADERS_TOO_LARGE,
    ProblemCode.INTERNAL_ERROR,
    ProblemCode.UNAVAILABLE,
)
"""What any request may be answered, whatever it asks for."""
STREAM = (ProblemCode.TOO_MANY_OWN_STREAMS, ProblemCode.TOO_MANY_STREAMS)
FILE = (ProblemCode.NO_FILE, ProblemCode.NOT_RUNNING, *STREAM)
SUBMIT = (
    ProblemCode.QUEUE_FORBIDDEN,
    ProblemCode.RUNTIME_FORBIDDEN,
    ProblemCode.SECRET_FORBIDDEN,
    ProblemCode.ALREADY_EXISTS,
    ProblemCode.CONFLICT,
    ProblemCode.UNKNOWN_QUEUE,
    ProblemCode.UNKNOWN_RUNTIME,
    ProblemCode.UNKNOWN_CODE,
    ProblemCode.CLUSTER_ONLY,
    ProblemCode.PRIORITY_TOO_HIGH,
    ProblemCode.NEVER_FITS,
    ProblemCode.IDEMPOTENCY_KEY_REUSED,
)


def refuses(*codes: ProblemCode) -> Callable[[F], F]:
    """Declare what an endpoint may answer beside what follows from its access, its parameters and its body."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, codes)
        return endpoint

    return declare


def problems_of(route: APIRoute) -> list[ProblemCode]:
    """Those of this route beside ANYWHERE, by status."""
    found = {*getattr(route.endpoint, _ATTRIBUTE, ()), *_of_access(route), *_of_body(route)}
    if any(parameter.alias == "if-match" for parameter in route.dependant.header_params):
        found |= {ProblemCode.PRECONDITION_FAILED, ProblemCode.CONFLICT}
    if route.param_convertors:
        found.add(ProblemCode.INVALID_FIELDS)
    return sorted(found, key=list(ProblemCode).index)


def _of_access(route: APIRoute) -> Iterable[ProblemCode]:
    needed = declared(route.endpoint)
    if needed is Access.OPEN:
        return
    yield ProblemCode.UNAUTHORIZED
    if isinstance(needed, Right):
        yield ProblemCode.FORBIDDEN
    if route.param_convertors:
        yield ProblemCode.NOT_FOUND


def _of_body(route: APIRoute) -> Iterable[ProblemCode]:
    body = (route.openapi_extra or {}).get("requestBody")
    if body is not None:
        yield from (ProblemCode.BODY_TOO_LARGE, ProblemCode.UNSUPPORTED_MEDIA_TYPE, ProblemCode.INVALID_FIELDS)
        if JSON in body["content"]:
            yield ProblemCode.INVALID_JSON
