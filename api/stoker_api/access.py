"""Who may call what: deny by default.

Each endpoint says with `@access(...)` which role it needs; `authorize` is a dependency of the whole app, finds the
declaration by the matched endpoint and refuses endpoints that declare nothing. Which projects a token sees is asked of
the `Principal` by the routes (`visible`), so that the answer for another's job is that of a missing one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from .problems import Code, Problem, not_found
from .tokens import Principal, Role, TokenFile
from .worker_token import PREFIX as WORKER_PREFIX
from .worker_token import pod_uid_of

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__stoker_access__"


class Access(StrEnum):
    """What an endpoint asks of its caller."""

    OPEN = "open"
    READER = "reader"
    USER = "user"
    ADMIN = "admin"
    WORKER = "worker"


_ROLES = {Access.READER: Role.READER, Access.USER: Role.USER, Access.ADMIN: Role.ADMIN}


def access(needed: Access) -> Callable[[F], F]:
    """Declare what an endpoint needs."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, needed)
        return endpoint

    return declare


def declared(endpoint: object) -> Access | None:
    return getattr(endpoint, _ATTRIBUTE, None)


async def authorize(request: Request) -> None:
    """Let the request pass or raise 401 / 403; leaves the caller in `request.state`."""
    needed = declared(request.scope.get("endpoint"))
    if needed is Access.OPEN:
        return
    token = _bearer(request)
    state = request.app.state
    if needed is Access.WORKER:
        pod_uid = pod_uid_of(state.report_key, token)
        if pod_uid is None:
            raise _unauthorized("The worker's token is not valid.")
        request.state.pod_uid = pod_uid
        return
    if token.startswith(WORKER_PREFIX + "."):
        raise _unauthorized("A worker's token opens only /v1/report/progress.")
    tokens: TokenFile = state.tokens
    principal = tokens.find(token)
    if principal is None:
        raise _unauthorized("The token is not known here; `stoker up` prints where the administrator's stands.")
    if needed is None:
        raise Problem(Code.FORBIDDEN, "This route declares no access and is therefore closed.")
    if principal.role.rank < _ROLES[needed].rank:
        raise Problem(
            Code.FORBIDDEN,
            f"The token {principal.name!r} has the role {principal.role}; this needs {needed}.",
        )
    request.state.principal = principal


async def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


Caller = Annotated[Principal, Depends(_principal)]


def visible(principal: Principal, project: str, what: str) -> None:
    """Raise 404 (never 403: existence is no one else's business) where the token does not see the project."""
    if not principal.may_see(project):
        raise not_found(what)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("Send the header `Authorization: Bearer <token>`.")
    return token.strip()


def _unauthorized(detail: str) -> Problem:
    return Problem(Code.UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="stoker"'})
