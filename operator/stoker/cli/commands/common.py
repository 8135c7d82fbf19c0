"""What commands share: the options that name a server, output forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.client.config import ALL_PROJECTS, find_server
from stoker.client.errors import ApiError, BadInput, StokerError
from stoker.spec.names import DEFAULT_PROJECT

from .names import complete_jobs, complete_projects

if TYPE_CHECKING:
    from stoker.client.calls import Calls

_NAMED = 8
"""Jobs that a message names."""
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
    project = click.option(
        "-p",
        "--project",
        metavar="PROJECT",
        help="The project. [default: default]",
        shell_complete=complete_projects,
    )
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
            if not own_project:
                return function(calls, *args, **kwargs)
            try:
                return for_job(calls, kwargs.get("job"), lambda job: function(calls, *args, **_renamed(kwargs, job)))
            except ApiError as error:
                raise _with_projects(calls, error) from None

    return call


def _renamed(kwargs: dict[str, Any], job: str | None) -> dict[str, Any]:
    return kwargs if job is None else kwargs | {"job": job}


def for_job(calls: Calls, name: str | None, act: Callable[[Any], Any]) -> Any:
    """What `act` does with the job; if there is no such one, with the only job whose name begins so.

    `act` must have done and printed nothing where the job is missing. Raises: what `act` does; BadInput (several).
    """
    try:
        return act(name)
    except ApiError as error:
        full = full_name(calls, name) if error.status == 404 and error.code == "NotFound" and name else None
        if full is None:
            raise
    click.echo(f"{name}: {full}", err=True)
    return act(full)


def full_name(calls: Calls, beginning: str) -> str | None:
    """The name of the only job whose name begins so. None: there is none. Raises: BadInput where there are several."""
    if calls.project == ALL_PROJECTS:
        return None
    found: list[str] = []
    try:
        for job in calls.jobs(text=beginning):
            name = str((job.get("metadata") or {}).get("name"))
            if name == beginning:
                return None
            if name.startswith(beginning):
                found.append(name)
            if len(found) > _NAMED:
                break
    except ApiError:  # an older server, or a project that the token may not list
        return None
    if len(found) > 1:
        more = ", …" if len(found) > _NAMED else ""
        raise BadInput(f"{beginning!r} begins several names: {', '.join(found[:_NAMED])}{more}; type more of it")
    return found[0] if found else None


def _with_projects(calls: Calls, error: ApiError) -> ApiError:
    """With the projects that the token is for, where it may be that another one was meant."""
    if error.status not in (403, 404) or calls.project == ALL_PROJECTS:
        return error
    try:
        mine = [name for name in calls.whoami()["projects"] if isinstance(name, str)]
    except (StokerError, KeyError, TypeError):
        return error
    if mine and calls.project not in mine and "*" not in mine:
        error.detail = f"{error}\nyour token is for {', '.join(mine)}: -p {mine[0]}, or STOKER_PROJECT={mine[0]}"
    return error


def open_calls(ctx: click.Context, server: str | None, token: str | None, project: str | None) -> Calls:
    """`Calls` by the command's own options, else those given before the command's name."""
    from stoker.client.calls import Calls

    above = ctx.find_root().obj or {}
    endpoint = find_server(server or above.get("server"), token or above.get("token"))
    return Calls(endpoint, project or above.get("project") or DEFAULT_PROJECT)


def show_warning(text: str) -> None:
    """What the server, or the command, warns of."""
    from stoker.cli.output import one_line

    click.echo(f"warning: {one_line(text)}", err=True)


def output_option(*forms: str) -> Callable[[_F], _F]:
    """`-o`, and `--json` for `-o json`; the first of `forms` is the default."""

    def add(function: _F) -> _F:
        @click.pass_context
        @functools.wraps(function)
        def call(ctx: click.Context, /, *args: Any, form: str, as_json: bool, **kwargs: Any) -> Any:
            from click.core import ParameterSource

            if as_json and form != "json" and ctx.get_parameter_source("form") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--json and -o {form}: choose one")
            return function(*args, form="json" if as_json else form, **kwargs)

        form = click.option(
            "-o",
            "--output",
            "form",
            type=click.Choice(forms),
            default=forms[0],
            show_default=True,
            help="What to print.",
        )
        return form(click.option("--json", "as_json", is_flag=True, help="As -o json.")(call))  # type: ignore[return-value]

    return add


job_argument = click.argument("job", metavar="JOB", shell_complete=complete_jobs)
