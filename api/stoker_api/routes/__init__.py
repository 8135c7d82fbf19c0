"""HTTP only: each file reads a request, asks a service, writes an answer. Paths stand in full at each route, so that
metrics and the access test see them as clients do.

All routes, flat: what `create_app` includes, the OpenAPI document describes and the access test walks.
"""

from __future__ import annotations

from fastapi.routing import APIRoute, APIWebSocketRoute

from . import (
    cluster_objects,
    code,
    curves,
    files,
    health,
    jobs,
    nodes,
    page,
    project_secrets,
    report,
    report_usage,
    sessions,
    streams,
    tickets,
    usage,
)

ROUTERS = tuple(
    module.router
    for module in (
        health,
        project_secrets,
        jobs,
        streams,
        files,
        code,
        cluster_objects,
        nodes,
        report,
        report_usage,
        sessions,
        usage,
        curves,
        tickets,
        page,
    )
)


def api_routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def websocket_routes() -> list[APIWebSocketRoute]:
    """Beside those of `api_routes`: what is opened by a WebSocket's handshake."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIWebSocketRoute)]
