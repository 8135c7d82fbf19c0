"""Every route × every kind of caller, in both modes: who is let in, and that "not yours" reads like "not there".

`tools/verify/permissions.py` runs this with $STOKER_MATRIX set to a folder, which then gets the table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from stoker.spec.queue import QUEUES
from stoker.store.port import NotFound
from stoker_api.access import Access
from stoker_api.identity import Right

from .permissions import (
    CALLERS,
    KNOWN,
    MISSING,
    NOWHERE,
    REFUSED,
    REPORTERS,
    SECRET,
    THERE,
    USES,
    Row,
    Said,
    as_text,
    ask,
    bearer,
    expected,
    rows,
    spent_cluster_tokens,
    spent_tokens,
)

ROWS = rows()
PAGE = {
    "/",
    "/jobs/{path:path}",
    "/compare",
    "/queues",
    "/gpus",
    "/docs",
    "/page/{digest}/{path:path}",
    "/openapi.json",
}
"""The same for all callers: what the page shows it asks of other routes."""
OPEN = {"/livez", "/readyz", "/version", *PAGE, "/v1/sign-in-tickets/exchange", "/v1/file-tickets/{ticket}"}
TICKETS = [row for row in ROWS if row.path.endswith("/file-tickets")]
"""Made to read: they change no object."""


def test_every_route_declares_what_it_needs():
    assert [str(row) for row in ROWS if row.needed is None] == []
    assert {row.path for row in ROWS if row.needed is Access.OPEN} == OPEN
    for row in ROWS:
        reports = row.needed in REPORTERS.values()
        assert row.path.startswith("/v1/report/") == reports, row
        assert not row.of_project or isinstance(row.needed, Right), row
        reads = isinstance(row.needed, Right) and row.needed.verb in ("get", "list")
        assert row.method == "GET" or reports or not reads or row in TICKETS, f"{row} changes what readers may read"


async def callers(world: Any, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """Headers by caller."""
    if "hands" in world.__dict__:
        key = request.getfixturevalue("the_bed").cluster.kubeconfig.parent / "pki" / "sa.key"
        if not key.exists():
            pytest.skip("another owner's cluster: no token can be signed here")
        spent = await spent_cluster_tokens(world, key)
    else:
        spent = spent_tokens(tmp_path / "tokens")
    worker = await world.worker_token(await world.pod(await world.job("worked")))
    names = {"other tenant": "bob", "reader": "reader", "user": "alice", "admin": "admin", "garbage": "garbage"}
    exporter = await world.exporter_token()
    found = {"no token": {}, "worker": bearer(worker), "exporter": bearer(exporter)} | {
        caller: bearer(token) for caller, token in spent.items()
    }
    return found | {caller: bearer(world.keys[who]) for caller, who in names.items()}


async def test_matrix(world, tmp_path, request):
    headers = await callers(world, tmp_path, request)
    await world.job("first")
    before = await objects(world)
    wrong: list[str] = []
    cells: dict[tuple[Row, str], str] = {}
    for row in ROWS:
        unknown = set()
        for caller in CALLERS:
            status = expected(row, caller)
            if status == 0:
                continue
            there, missing, nowhere = [
                (await ask(world, row, row.url(*at), headers[caller])).about(*at)
                for at in (row.there, MISSING, NOWHERE)
            ]
            cells[row, caller] = str(there.status)
            if there.status != status:
                wrong.append(f"{row} by {caller}: {there}, not {status}")
            elif there != missing:
                wrong.append(f"{row} by {caller}: {there} differs from {missing}")
            elif there != nowhere and KNOWN.get(caller, ("",))[0] != "alpha":
                wrong.append(f"{row} by {caller}: {there} differs from {nowhere}")
            if status == 401 and caller != "no token":
                unknown.add(there)
        if len(unknown) > 1:
            wrong.append(f"{row}: the kinds of unknown tokens differ: {unknown}")
    assert await objects(world) == before, "something was changed by who may not"
    for row in ROWS:
        for caller in CALLERS:
            if expected(row, caller) != 0:
                continue
            await ensure_job(world)
            said = await ask(world, row, row.url(*row.there), headers[caller])
            cells[row, caller] = "yes"
            if turned_away(row, said):
                wrong.append(f"{row} by {caller}: not let in: {said.status} {said.text}")
    assert wrong == []
    write(world, cells)


async def test_not_there_reads_like_not_yours(world):
    """What bob hears of a job of his own project that is not there, and of one that is, but in another's."""
    await world.job("first")
    checked = 0
    for row in ROWS:
        if row.of_project and "{name}" in row.path:
            theirs = await ask(world, row, row.url(*THERE), world.auth("bob"))
            ours = await ask(world, row, row.url("beta", "other"), world.auth("bob"))
            assert theirs.about(*THERE, sizes=False) == ours.about("beta", "other", sizes=False), str(row)
            checked += 1
    assert checked > 8


async def test_what_is_no_bearer_token_is_none(world):
    for row in ROWS:
        if row.needed is not Access.OPEN:
            url, others = row.url(*THERE), ({"Authorization": "Basic YTpi"}, {"Authorization": "Bearer "})
            none = await ask(world, row, url, {})
            assert none.status == 401 and none.document["code"] == "Unauthorized"
            assert dict(none.headers)["www-authenticate"] == 'Bearer realm="stoker"'
            for other in others:
                assert (await ask(world, row, url, other)).about(*THERE) == none.about(*THERE)


def test_the_rule_itself():
    """The columns differ as they are meant to: else an empty rule would pass."""
    by = {caller: [expected(row, caller) for row in ROWS] for caller in CALLERS}
    assert all(set(by[caller]) == {0, 401} for caller in (*REFUSED, *REPORTERS))
    assert set(by["other tenant"]) == {0, 401, 403, 404} and set(by["reader"]) == set(by["user"]) == {0, 401, 403}
    assert set(by["admin"]) == {0, 401}
    needs = {(r.needed.verb, r.needed.resource or r.needed.name) for r in ROWS if isinstance(r.needed, Right)}
    assert {need for need in needs if need[1].startswith("trainingjobs")} <= USES, "a right that no role has"


async def objects(world: Any) -> list[tuple[str, str]]:
    found = [obj for kind in (JOBS, QUEUES) for obj in (await world.store.list(kind)).items]
    return sorted((str(obj.key), obj.metadata.resource_version) for obj in found)


async def ensure_job(world: Any) -> None:
    """The job and the secret are there, whatever the call before has done to them."""
    await world.deps.secrets.put(world.keys["admin"], THERE[0], SECRET, "value", "x")
    try:
        found = await world.store.get(JOBS, Key(*THERE))
    except NotFound:
        found = None
    if found is None or found.metadata.deletion_timestamp is not None:
        await world.deps.jobs.wait_for(lambda jobs: jobs.get(Key(*THERE)) is None, timeout_s=5)
        await world.job("first")


def turned_away(row: Row, said: Said) -> bool:
    if said.status in (401, 403):
        return True
    # Of a job that is there, only who may not see it hears that it is not.
    return row.of_project and said.status == 404 and "or the token may not see it" in said.document["detail"]


def write(world: Any, cells: dict[tuple[Row, str], str]) -> None:
    folder = os.environ.get("STOKER_MATRIX")
    if folder:
        mode = "Kubernetes" if "hands" in world.__dict__ else "one machine"
        lines = [[f"`{row}`", str(row.needed), *(cells[row, caller] for caller in CALLERS)] for row in ROWS]
        text = as_text(f"On {mode}: {len(cells)} cells", ["route", "needs", *CALLERS], lines)
        Path(folder, f"api-{mode.replace(' ', '-')}.md").write_text(text)
