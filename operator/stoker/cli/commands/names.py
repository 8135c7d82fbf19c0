"""Completion: what may stand where a name is typed. Nothing when no server answers at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import click

from stoker.client.config import ALL_PROJECTS, find_server
from stoker.client.errors import StokerError
from stoker.spec.names import DEFAULT_PROJECT, SECRET_VALUE
from stoker.spec.phase import Phase

ANSWER_S = 0.5
"""A person who presses Tab waits no longer."""
MOST = 200
KINDS = ("jobs", "queues", "nodes", "runtimes")
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the newest jobs."""
    return _starting(job_names(*_asked(ctx)), incomplete)


def complete_in(*phases: Phase) -> Complete:
    """Names of jobs in these phases."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return _starting(job_names(*_asked(ctx), phases=phases), incomplete)

    return complete


def complete_whats(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What `get` takes first."""
    return _starting([*KINDS, *job_names(*_asked(ctx))], incomplete)


def complete_objects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What `get` takes second."""
    kind = f"{str(ctx.params.get('what') or '').removesuffix('s')}s"
    return complete_of(kind)(ctx, param, incomplete) if kind in KINDS[1:] else complete_jobs(ctx, param, incomplete)


def complete_of(kind: str) -> Complete:
    """Names of `queues`, `runtimes` or `nodes`."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        server, token, _ = _asked(ctx)
        return _starting(_names(server, token, f"/v1/{kind}"), incomplete)

    return complete


def complete_projects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Projects that the token sees, and `-` for all."""
    server, token, _ = _asked(ctx)
    found = _answer(server, token, "/v1/whoami")
    projects = found.get("projects") if isinstance(found, dict) else None
    known = [str(name) for name in projects if name != "*"] if isinstance(projects, list) else []
    return _starting([*known, ALL_PROJECTS], incomplete)


def complete_secrets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Secrets of the project, with their keys where there are several."""
    from urllib.parse import quote

    server, token, project = _asked(ctx)
    found = _answer(server, token, f"/v1/projects/{quote(project or DEFAULT_PROJECT, safe='')}/secrets")
    items = found.get("items") if isinstance(found, dict) else None
    names = []
    for item in items if isinstance(items, list) else []:
        keys = item.get("keys") or []
        names += [item["name"], *(f"{item['name']}/{key}" for key in keys if len(keys) > 1 or key != SECRET_VALUE)]
    return _starting(names, incomplete)


def complete_phases(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The last of several between commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + phase for phase in Phase if phase.lower().startswith(last.lower())]


def job_names(server: str | None, token: str | None, project: str | None, phases: Collection[str] = ()) -> list[str]:
    """The newest jobs' names; empty when there is no server or it is slow."""
    from urllib.parse import quote

    wanted = f"&phase={','.join(phases)}" if phases else ""
    path = f"/v1/projects/{quote(project or DEFAULT_PROJECT, safe='')}/jobs?limit={MOST}{wanted}"
    return _names(server, token, path)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _asked(ctx: click.Context) -> tuple[str | None, str | None, str | None]:
    """Server, token and project of what is typed so far."""
    options = {**(ctx.find_root().params or {}), **{k: v for k, v in ctx.params.items() if v}}
    return options.get("server"), options.get("token"), options.get("project")


def _names(server: str | None, token: str | None, path: str) -> list[str]:
    found = _answer(server, token, path)
    try:
        return [str(item["metadata"]["name"]) for item in found["items"]]
    except (KeyError, TypeError):
        return []


def _answer(server: str | None, token: str | None, path: str) -> Any:
    """What the server says; None: nothing of use."""
    from stoker.client.wire import Wire

    try:
        wire = Wire(find_server(server, token), timeout_s=ANSWER_S, tries=1)
        try:
            return wire.call("GET", path).body
        finally:
            wire.close()
    except StokerError:
        return None
