"""Who may call what: deny by default.

Each endpoint says with `@access(...)` which right it needs; `authorize` is a dependency of the whole app, finds the
declaration by the matched endpoint and refuses endpoints that declare nothing. It holds for WebSockets too, before
their handshake. Rights on jobs are asked for the
project of the path; where the caller may not read that project's jobs the answer is that of a missing one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from fastapi.requests import HTTPConnection

from .identity import EVERYWHERE, GET_JOB, LIST_JOBS, Identity, Principal, Right
from .problems import Problem, ProblemCode, not_found

F = TypeVar("F", bound=Callable[..., Any])
ALL = "-"
"""As a project in a path: all that the caller may see."""
_ATTRIBUTE = "__stoker_access__"


class Access(StrEnum):
    """What an endpoint asks of its caller where that is no right."""

    OPEN = "open"
    KNOWN = "known"
    """Any valid token."""
    WORKER = "worker"
    EXPORTER = "exporter"
    """The exporter of one node; it may report on that node only."""


Needed = Access | Right


def access(needed: Needed) -> Callable[[F], F]:
    """Declare what an endpoint needs."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, needed)
        return endpoint

    return declare


def declared(endpoint: object) -> Needed | None:
    return getattr(endpoint, _ATTRIBUTE, None)


async def authorize(request: HTTPConnection) -> None:
    """Let the request pass or raise 401 / 403 / 404; leaves the caller in `request.state`."""
    needed = declared(request.scope.get("endpoint"))
    if needed is Access.OPEN:
        return
    token = bearer(request)
    identity: Identity = request.app.state.identity
    if needed is Access.WORKER:
        pod_uid = await identity.worker(token)
        if pod_uid is None:
            raise _unauthorized("The worker's token is not valid.")
        request.state.pod_uid = pod_uid
        return
    if needed is Access.EXPORTER:
        node = await identity.exporter(token)
        if node is None:
            raise _unauthorized("The exporter's token is not valid.")
        request.state.node = node
        return
    principal = await identity.authenticate(token)
    if principal is None:
        raise _unauthorized(f"The token is not known here, or not any more; {identity.hint}")
    request.state.principal = principal
    if needed is None:
        raise Problem(ProblemCode.FORBIDDEN, "This route declares no access and is therefore closed.")
    if isinstance(needed, Right):
        await require(request, principal, needed)


async def require(request: HTTPConnection, principal: Principal, right: Right) -> None:
    """Raise 403 where the caller lacks the right, or 404 (existence is no one else's business)."""
    project: str = request.path_params.get("project", EVERYWHERE)
    if project == ALL and right == LIST_JOBS:
        return  # the list itself holds only what the caller may see
    identity: Identity = request.app.state.identity
    if await identity.may(principal, right, project):
        return
    where = ""
    if project:
        where = f" in project {project!r}"
        if right == GET_JOB or not await identity.may(principal, GET_JOB, project):
            name = request.path_params.get("name")
            raise not_found(f"job {name!r}{where}" if name is not None else f"project {project!r}")
    raise Problem(ProblemCode.FORBIDDEN, f"{principal.name!r} may not {right}{where}; ask an administrator.")


async def _principal(request: HTTPConnection) -> Principal:
    principal: Principal = request.state.principal
    return principal


Caller = Annotated[Principal, Depends(_principal)]


def bearer(request: HTTPConnection) -> str:
    """The token of its header. Raises: Problem (401)."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("Send the header `Authorization: Bearer <token>`.")
    return token.strip()


def _unauthorized(detail: str) -> Problem:
    return Problem(ProblemCode.UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="stoker"'})
