"""The permission matrix of the api: its rows from the route table, its columns from the kinds of callers, and one rule.

Owns what each role may do, stated on its own (not by the implementation), how one route is called by one caller, and
the table as text. Called by test_permission_matrix.py.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from stoker.store.clock import ManualClock
from stoker_api.access import Access, declared
from stoker_api.identity import Right
from stoker_api.routes import api_routes, websocket_routes
from stoker_api.tokens import TokenFile

READS = {("get", "trainingjobs"), ("list", "trainingjobs"), ("list", "queues"), ("list", "trainingruntimes")}
READS |= {("list", "gpunodes")}
USES = READS | {(verb, "trainingjobs") for verb in ("create", "update", "delete")}
USES |= {("create", "trainingjobs/exec"), ("create", "trainingjobs/portforward"), ("get", "trainingjobs/files")}
USES |= {(verb, "projectsecrets") for verb in ("list", "update", "delete")}

# Caller → (the project its rights on jobs are for, its rights). The administrator has all, everywhere.
KNOWN = {"other tenant": ("beta", USES), "reader": ("alpha", READS), "user": ("alpha", USES)}
REFUSED = ("no token", "garbage", "expired", "revoked")
REPORTERS = {"worker": Access.WORKER, "exporter": Access.EXPORTER}
CALLERS = (*REFUSED, *KNOWN, "admin", *REPORTERS)

# Names of the same length, so that answers are as long. The queue named `small` is there, too.
THERE, MISSING, NOWHERE = ("alpha", "first"), ("alpha", "other"), ("gamma", "first")
QUEUE_THERE = ("", "small")
SECRET = "hf"
DIGEST = "sha256:" + 64 * "0"


@dataclass(frozen=True)
class Row:
    """One route: a method (or WS, a WebSocket's handshake) on a path, and what it declares."""

    method: str
    path: str
    needed: Access | Right | None

    def __str__(self) -> str:
        return f"{self.method:<6} {self.path}"

    @property
    def of_project(self) -> bool:
        return "{project}" in self.path

    @property
    def there(self) -> tuple[str, str]:
        """A project and a name that are there."""
        return THERE if self.of_project or "/queues/" not in self.path else QUEUE_THERE

    def url(self, project: str, name: str) -> str:
        """The path for this project and name; whatever else it is to name is not there."""
        path = self.path.replace("{project}", project).replace("{name}", name).replace("{digest}", DIGEST)
        path = path.replace("{secret}", SECRET).replace("{key}", "value")
        return path.replace("{session}", "none").replace("{ticket}", "none").replace("{path:path}", "none")


def rows() -> list[Row]:
    """Every route of the table. A new one is here by itself; HEAD is its GET without the body."""
    found = [Row(method, r.path, declared(r.endpoint)) for r in api_routes() for method in sorted(r.methods - {"HEAD"})]
    return found + [Row("WS", route.path, declared(route.endpoint)) for route in websocket_routes()]


def expected(row: Row, caller: str) -> int:
    """The status by which the caller is turned away; 0: it is let in."""
    if row.needed is Access.OPEN:
        return 0
    if row.needed in REPORTERS.values() or caller in REPORTERS:
        return 0 if row.needed is REPORTERS.get(caller) else 401
    if caller in REFUSED:
        return 401
    if row.needed is Access.KNOWN or caller == "admin":
        return 0
    assert isinstance(row.needed, Right), f"{row} declares no right"
    project, rights = KNOWN[caller]
    has = (row.needed.verb, row.needed.resource or row.needed.name) in rights
    if not row.of_project:
        return 0 if has else 403
    if project != "alpha":
        return 404
    return 0 if has else 403


class Seen(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]
    text: str


@dataclass(frozen=True)
class Said:
    status: int
    headers: tuple[tuple[str, str], ...]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text or "{}")  # HEAD has no body

    def about(self, project: str, name: str, *, sizes: bool = True) -> Seen:
        """All that a caller sees of the answer, but for the names it used itself and the request's own trace."""
        document = {**self.document, "traceId": ""}
        text = json.dumps(document).replace(f"'{project}'", "'PROJECT'").replace(f"'{name}'", "'NAME'")
        own = {"x-trace-id", "date", *(() if sizes else ("content-length",))}
        return Seen(self.status, tuple(one for one in self.headers if one[0] not in own), text)


async def ask(world: Any, row: Row, url: str, headers: Mapping[str, str]) -> Said:
    if row.method == "WS":
        return await _handshake(world.app, url, headers)
    answer: httpx.Response = await world.client.request(row.method, url, headers=headers)
    return Said(answer.status_code, tuple(sorted(answer.headers.items())), answer.text)


async def _handshake(app: Any, url: str, headers: Mapping[str, str]) -> Said:
    """What the server answers to a WebSocket's handshake; 101: it is taken, and the caller leaves at once."""
    listed = [(b"host", b"127.0.0.1"), *((k.lower().encode(), v.encode()) for k, v in headers.items())]
    scope = {
        "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "scheme": "ws",
        "path": url, "raw_path": url.encode(), "query_string": b"", "root_path": "", "headers": listed, "state": {},
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "subprotocols": ["v1.session.stoker.dev"],
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    events, sent = iter([{"type": "websocket.connect"}]), []

    async def receive() -> dict[str, Any]:
        return next(events, {"type": "websocket.disconnect", "code": 1000})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    first = sent[0]
    if first["type"] == "websocket.accept":
        return Said(101, (), "{}")
    assert first["type"] == "websocket.http.response.start", first
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Said(first["status"], tuple(sorted((k.decode(), v.decode()) for k, v in first["headers"])), body.decode())


# Tokens that once were good


def spent_tokens(folder: Path) -> dict[str, str]:
    """An expired and a revoked one of the token file in `folder`, both a user's in project alpha."""
    then = ManualClock(datetime.now(UTC) - timedelta(days=2))
    late = TokenFile.open(folder, then).add("late", "user", ["alpha"], timedelta(days=1))
    tokens = TokenFile.open(folder)
    taken_back = tokens.add("gone", "user", ["alpha"])
    assert tokens.find(taken_back) is not None
    tokens.revoke("gone")
    return {"expired": late, "revoked": taken_back}


async def spent_cluster_tokens(world: Any, key: Path) -> dict[str, str]:
    """The same of a cluster: tokens of the user's own account, one signed anew with its end in the past, one bound to
    an object that is gone."""
    good = world.keys["alice"]
    assert (await world.client.get("/v1/whoami", headers=bearer(signed(good, key, ends_in_s=600)))).status_code == 200
    path = "/api/v1/namespaces/alpha"
    secret = await world.hands.send("POST", f"{path}/secrets", {"metadata": {"generateName": "leash-"}})
    name, uid = secret["metadata"]["name"], secret["metadata"]["uid"]
    bound = {"kind": "Secret", "apiVersion": "v1", "name": name, "uid": uid}
    body = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    made = await world.hands.send("POST", f"{path}/serviceaccounts/alice/token", body)
    await world.hands.send("DELETE", f"{path}/secrets/{name}")
    return {"expired": signed(good, key, ends_in_s=-600), "revoked": made["status"]["token"]}


def signed(token: str, key: Path, *, ends_in_s: float) -> str:
    """A service account's token with another end, signed with the cluster's own key."""
    head, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    claims["exp"] = int(datetime.now(UTC).timestamp() + ends_in_s)
    said = f"{head}.{_encoded(json.dumps(claims).encode())}"
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    done = subprocess.run(command, input=said.encode(), capture_output=True, check=True, timeout=30)
    return f"{said}.{_encoded(done.stdout)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def as_text(title: str, head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, wide enough to be read as it stands."""
    cells = [list(head), *(list(line) for line in lines)]
    sizes = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    cells.insert(1, ["-" * size for size in sizes])
    body = "".join("| " + " | ".join(f"{t:<{n}}" for t, n in zip(row, sizes, strict=True)) + " |\n" for row in cells)
    return f"{title}\n\n{body}"
