"""What commands share: the options that name a server, output forms, completion of names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.client.config import find_server
from stoker.client.errors import StokerError

if TYPE_CHECKING:
    from stoker.client.calls import Calls

COMPLETION_S = 0.5
COMPLETIONS = 200
_F = TypeVar("_F", bound=Callable[..., Any])


class Group(click.Group):
    """A command with commands of its own, which knows what other tools call them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            from stoker.cli.habits import unknown_command

            ctx.fail(unknown_command(args[0], self.name or "", list(self.commands)))
        return super().resolve_command(ctx, args)


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--server`, `--token` and `--project`, and call it with `Calls` as its first argument."""
    project = click.option("-p", "--project", metavar="PROJECT", help="The project. [default: default]")
    return _server_options(project(_calling(function)))


def connected_cluster_wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `connected`, for commands that no project bounds."""
    return _server_options(_calling(function, own_project=False))


def _server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    token = click.option("--token", metavar="TOKEN", help="The token, if not STOKER_TOKEN or the local server's.")
    server = click.option("--server", metavar="URL", help="The server, if not the one of STOKER_SERVER or `stoker up`.")
    return server(token(function))


def _calling(function: Callable[..., Any], *, own_project: bool = True) -> Callable[..., Any]:
    @click.pass_context
    @functools.wraps(function)
    def call(ctx: click.Context, /, *args: Any, server: str | None, token: str | None, **kwargs: Any) -> Any:
        project = kwargs.pop("project") if own_project else None
        with open_calls(ctx, server, token, project) as calls:
            return function(calls, *args, **kwargs)

    return call


def open_calls(ctx: click.Context, server: str | None, token: str | None, project: str | None) -> Calls:
    """`Calls` by the command's own options, else those given before the command's name."""
    from stoker.client.calls import Calls
    from stoker.spec.names import DEFAULT_PROJECT

    above = ctx.find_root().obj or {}
    endpoint = find_server(server or above.get("server"), token or above.get("token"))
    return Calls(endpoint, project or above.get("project") or DEFAULT_PROJECT)


def output_option(*forms: str) -> Callable[[_F], _F]:
    """`-o`; the first of `forms` is the default."""
    return click.option(
        "-o", "--output", "form", type=click.Choice(forms), default=forms[0], show_default=True, help="What to print."
    )


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs that start with what is typed; nothing when no server answers at once."""
    options = {**(ctx.find_root().params or {}), **{k: v for k, v in ctx.params.items() if v}}
    found = job_names(options.get("server"), options.get("token"), options.get("project"))
    return [name for name in found if name.startswith(incomplete)]


def job_names(server: str | None, token: str | None, project: str | None) -> list[str]:
    """The newest jobs' names; empty when there is no server or it is slow.

    Standard library only: httpx takes longer to import than a person waits for a completion.
    """
    import http.client
    import json
    from urllib.parse import quote, urlsplit

    try:
        endpoint = find_server(server, token)
        parts = urlsplit(endpoint.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=COMPLETION_S)
        try:
            connection.request(
                "GET",
                f"{parts.path}/v1/projects/{quote(project or 'default', safe='')}/jobs?limit={COMPLETIONS}",
                headers={"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {},
            )
            page = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return [str(item["metadata"]["name"]) for item in page["items"]]
    except (StokerError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []


job_argument = click.argument("job", metavar="JOB", shell_complete=complete_jobs)
jobs_argument = click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
