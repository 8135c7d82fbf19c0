"""All routes, flat: what `create_app` includes, the OpenAPI document describes and the access test walks."""

from __future__ import annotations

from fastapi.routing import APIRoute

from . import actions, code, events, explain, health, jobs, logs, nodes, queues, report, report_code, runtimes

ROUTERS = tuple(
    module.router
    for module in (health, jobs, actions, events, logs, explain, code, queues, runtimes, nodes, report, report_code)
)


def api_routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
