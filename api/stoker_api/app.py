"""The api as one ASGI app: `create_app(deps)`.

Owns what surrounds the routes: middleware, error handlers, the background writer's life. Called by `serve.py`, by
`stoker up` and by the tests.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from stoker import __version__
from stoker.store.port import CannotRead, CannotWrite, Conflict, Forbidden, Invalid, NotFound, NotPermitted, StoreError
from stoker_api.middleware.limits import Starts
from stoker_api.routes import ROUTERS, api_routes, websocket_routes
from stoker_api.scrape_targets import MetricsPush

from .body_parsing import invalid_problem, parameter_errors
from .deps import Deps
from .identity import IdentityUnavailable
from .middleware.guard import Guard
from .middleware.limits import Arriving, Limits
from .middleware.observe import Observe
from .openapi import document
from .problems import Problem, ProblemCode
from .routes.common import CHECKS
from .services import Services

log = logging.getLogger(__name__)

_BY_STATUS = {404: ProblemCode.NOT_FOUND, 405: ProblemCode.METHOD_NOT_ALLOWED, 413: ProblemCode.BODY_TOO_LARGE}


def create_app(deps: Deps, metrics_push: MetricsPush | None = None) -> FastAPI:
    """The app over `deps`. Its lifespan runs what it needs in the background; the caches are the caller's to run.

    `metrics_push`: where metrics go, if anywhere. Raises: OSError, ssl.SSLError where its CA file can't be used.
    """
    services, arriving = Services.build(deps, metrics_push), Arriving()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = bare_app(
        middleware=[
            Middleware(Observe, metrics=services.metrics),
            Middleware(Starts, under_way=services.under_way),
            Middleware(Guard, hosts=deps.hosts),
            Middleware(Limits, arriving=arriving, routes=api_routes()),
        ],
        lifespan=lifespan,
    )
    app.state.services, app.state.arriving = services, arriving
    app.state.identity = deps.identity
    return app


def bare_app(**settings: Any) -> FastAPI:
    """The routes and error handlers alone: enough for the OpenAPI document."""
    app = FastAPI(
        title="Stoker",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=CHECKS,
        **settings,
    )
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(WebSocketRequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(StoreError, _on_store_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(IdentityUnavailable, _on_no_identity)
    app.openapi = document  # type: ignore[method-assign]
    return app


async def _on_problem(request: Request, error: Exception) -> Response:
    return cast(Problem, error).response(request.scope)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    faults = parameter_errors(cast(RequestValidationError | WebSocketRequestValidationError, error).errors())
    return invalid_problem(faults).response(request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    found = cast(HTTPException, error)
    code = _BY_STATUS.get(found.status_code, ProblemCode.BAD_REQUEST)
    if code is ProblemCode.NOT_FOUND and any(route.path_regex.match(request.url.path) for route in websocket_routes()):
        detail = "Open it with a WebSocket; a proxy on the way must let the handshake's Upgrade header through."
        return Problem(ProblemCode.UPGRADE_REQUIRED, detail, headers={"Upgrade": "websocket"}).response(request.scope)
    if code is ProblemCode.NOT_FOUND:
        detail = f"There is nothing at {request.url.path[:200]}; docs/api.md lists the routes."
    elif code is ProblemCode.METHOD_NOT_ALLOWED:
        here = (route.methods or () for route in api_routes() if route.path_regex.match(request.url.path))
        allowed = ", ".join(sorted(set().union(*here)))
        found.headers = {"Allow": allowed}
        detail = f"{request.method} does not work here; try {allowed}."
    else:
        detail = str(found.detail)
    return Problem(code, detail, headers=found.headers).response(request.scope)


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # for the metrics; the peer is gone


async def _on_store_error(request: Request, error: Exception) -> Response:
    match error:
        case NotFound():
            problem = Problem(ProblemCode.NOT_FOUND, "It was there a moment ago and is gone now.")
        case Conflict():
            problem = Problem(ProblemCode.CONFLICT, "Others changed it at the same time; try again.", retry_after_s=1)
        case Invalid(errors=errors):
            problem = Problem(ProblemCode.INVALID_FIELDS, "; ".join(errors))
        case CannotRead():
            problem = Problem(ProblemCode.INVALID_FIELDS, str(error))
        case NotPermitted():  # never 403, which would read as the caller's lack of permission
            log.warning("the cluster refuses the api's own account: %s", error)
            detail = (
                "The cluster refuses the server's own account: it may be starting. Try again; if it stays, ask an "
                f"administrator: {error}"
            )
            problem = Problem(ProblemCode.UNAVAILABLE, detail, retry_after_s=2)
        case Forbidden():  # a quota, an admission policy, a namespace that is going
            problem = Problem(ProblemCode.FORBIDDEN, f"The cluster refuses it: {error}")
        case CannotWrite():
            detail = f"The server's disk takes no writes: {error}. Nothing was changed; free some room, then try again."
            problem = Problem(ProblemCode.UNAVAILABLE, detail, retry_after_s=5)
        case _:
            problem = Problem(ProblemCode.UNAVAILABLE, "The store can't answer now; try again.", retry_after_s=2)
    return problem.response(request.scope)


async def _on_no_identity(request: Request, _error: Exception) -> Response:
    detail = "The cluster does not answer about tokens and permissions now; try again."
    return Problem(ProblemCode.UNAVAILABLE, detail, retry_after_s=2).response(request.scope)
