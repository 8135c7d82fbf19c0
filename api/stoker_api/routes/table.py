"""All routes, flat: what `create_app` includes, the OpenAPI document describes and the access test walks."""

from __future__ import annotations

from fastapi.routing import APIRoute

from . import actions, events, explain, health, jobs, logs, nodes, queues, report, runtimes

ROUTERS = tuple(
    module.router for module in (health, jobs, actions, events, logs, explain, queues, runtimes, nodes, report)
)


def api_routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
