"""All routes, flat: what `create_app` includes, the OpenAPI document describes and the access test walks."""

from __future__ import annotations

from fastapi.routing import APIRoute, APIWebSocketRoute

from . import (
    actions,
    code,
    discovery,
    events,
    explain,
    health,
    jobs,
    logs,
    nodes,
    queues,
    report,
    report_code,
    report_usage,
    runtimes,
    sessions,
    usage,
)

ROUTERS = tuple(
    module.router
    for module in (
        health, jobs, actions, events, logs, explain, code, queues, runtimes, nodes, report, report_code, report_usage,
        sessions, discovery, usage,
    )
)  # fmt: skip


def api_routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def websocket_routes() -> list[APIWebSocketRoute]:
    """Beside those of `api_routes`: what is opened by a WebSocket's handshake."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIWebSocketRoute)]
