"""The table of routes is whole, lists hold what a token sees, hosts and origins. Who may call what: permissions.py."""

from __future__ import annotations

from stoker.spec.report_tokens import exporter_token, node_of, pod_uid_of, worker_token
from stoker_api.app import bare_app
from stoker_api.routes import ROUTERS, api_routes
from stoker_api.routes.common import Router

CALLS = [
    (method, route.path_format) for route in api_routes() if route.include_in_schema for method in sorted(route.methods)
]


def test_every_route_of_the_app_is_in_the_table():
    app = bare_app()
    assert app.routes == [route for router in ROUTERS for route in router.routes], "a route was added beside the table"
    assert {type(router) for router in ROUTERS} == {Router}, "their routes are checked as all are"
    assert set(app.openapi()["paths"]) == {path for _, path in CALLS} - {"/openapi.json"}


async def test_a_route_without_declaration_is_closed(world):
    async def forgotten() -> None:
        raise AssertionError("reached")

    world.app.get("/v1/forgotten")(forgotten)
    assert (await world.call("GET", "/v1/forgotten", who="admin")).status_code == 403
    assert (await world.call("GET", "/v1/forgotten", who="garbage")).status_code == 401


async def test_lists_of_all_projects_hold_what_the_token_sees(world, body):
    await world.job("one")
    await world.submit(**body("two"), project="beta", who="bob")
    for who, names in (("alice", ["one"]), ("bob", ["two"]), ("admin", ["two", "one"]), ("reader", ["one"])):
        items = (await world.call("GET", "/v1/projects/-/jobs", who=who)).json()["items"]
        assert {item["metadata"]["name"] for item in items} == set(names)
    assert (await world.call("GET", "/v1/projects/beta/jobs")).status_code == 404
    assert (await world.call("POST", "/v1/projects/-/jobs", who="admin", json=body())).status_code == 422


async def test_a_queue_may_be_closed_to_a_project(world, body):
    answer = await world.submit(**body("two", queue="small"), project="beta", who="bob")
    assert answer.status_code == 403 and answer.json()["code"] == "QueueForbidden"


async def test_whoami(world):
    for who, role, projects in (
        ("alice", "user", ["alpha"]),
        ("bob", "user", ["beta"]),
        ("reader", "reader", ["alpha"]),
        ("admin", "admin", ["*"]),
    ):
        answer = (await world.call("GET", "/v1/whoami", who=who)).json()
        assert answer.pop("may"), "tests/api/test_page.py has what"
        assert answer == {"name": world.name(who), "role": role, "projects": projects, "grafana": ""}


HOSTS = [
    ("127.0.0.1", 200), ("127.0.0.1:7777", 200), ("localhost:1", 200), ("LOCALHOST", 200), ("[::1]:80", 200),
    ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("evil.example:80@127.0.0.1", 403), ("", 403),
    ("127.0.0.1:x", 403), ("[::1", 403), ("::1", 403), ("127.0.0.1:80:80", 403),
]  # fmt: skip


async def test_host(world):
    for host, status in HOSTS:
        answer = await world.client.get("/livez", headers={"Host": host})
        assert answer.status_code == status, host
        assert status == 200 or answer.json()["code"] == "ForeignHost"


ORIGINS = [
    ("http://127.0.0.1:80", 200), ("http://127.0.0.1", 200), ("http://127.0.0.1:3000", 403), ("null", 403),
    ("http://localhost", 403), ("https://127.0.0.1:8443", 403), ("http://evil.example", 403),
    ("http://127.0.0.1@evil.example", 403), ("http://127.0.0.1/x", 403), ("file://", 403),
]  # fmt: skip


async def test_origin(world):
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        for origin, status in ORIGINS:
            answer = await world.client.request(method, "/v1/whoami", headers={**world.auth(), "Origin": origin})
            wanted = 403 if status == 403 else (200 if method == "GET" else 405)
            assert answer.status_code == wanted, (method, origin)
            assert "access-control-allow-origin" not in answer.headers


def test_worker_token_is_bound_to_its_pod():
    token = worker_token(b"key", "pod-1")
    assert pod_uid_of(b"key", token) == "pod-1"
    for bad in (
        token.replace("pod-1", "pod-2"),
        token[:-1],
        token + "0",
        "wkr..x",
        "wkr.pod-1",
        "",
        "wkr.\udcff.\udcff",
    ):
        assert pod_uid_of(b"key", bad) is None
    assert pod_uid_of(b"other", token) is None


def test_an_exporters_token_is_of_its_node_and_of_no_other_kind():
    token = exporter_token(b"key", "node-1.example")
    assert node_of(b"key", token) == "node-1.example"
    assert node_of(b"other", token) is None and node_of(b"key", token.replace("node-1", "node-2")) is None
    worker = worker_token(b"key", "node-1")
    assert node_of(b"key", worker) is None and pod_uid_of(b"key", token) is None
    assert node_of(b"key", "exp" + worker.removeprefix("wkr")) is None, "a worker's proof is of its pod alone"
    assert pod_uid_of(b"key", "wkr" + token.removeprefix("exp")) is None
