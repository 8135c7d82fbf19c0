"""`stoker token create | list | revoke`: in the server's data folder, by who may write that; no route makes tokens."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.client.config import DEFAULT_SERVER, Endpoint, data_folder, local_server
from stoker.client.errors import BadInput
from stoker.spec.names import DEFAULT_PROJECT

from .common import Group, output_option

if TYPE_CHECKING:
    from stoker_api.tokens import TokenFile

LIFETIME = "90d"
NEVER = "never"

_data_option = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="The data folder. [STOKER_HOME, else ~/.stoker]"
)


@click.group(cls=Group)
def token() -> None:
    """Tokens for the server of a data folder (`stoker up`). On a cluster tokens are the cluster's own."""


@token.command("create", short_help="Make a token and print it, once.")
@click.argument("name")
@click.option("--role", type=click.Choice(["reader", "user", "admin"]), default="user", show_default=True)
@click.option(
    "--project", "projects", multiple=True, help="A project it is for; '*' is all. Repeatable.", required=True
)
@click.option(
    "--expires",
    metavar="DURATION",
    default=LIFETIME,
    show_default=True,
    help=f"How long it works, for example 12h or 30d; '{NEVER}': until it is revoked.",
)
@_data_option
def create(name: str, role: str, projects: tuple[str, ...], expires: str, data: Path | None) -> None:
    """Make the token NAME and print it, for the only time; a running server knows it at once.

    On a terminal with what its owner types.
    """
    lifetime = _lifetime(expires)
    made = _carried_out(data, lambda tokens: tokens.add(name, role, projects, lifetime))
    click.echo(made)
    if sys.stdout.isatty():
        click.echo(_owner_types(name, made, projects, data or data_folder()), err=True)


def _owner_types(name: str, token: str, projects: tuple[str, ...], folder: Path) -> str:
    """Lines for the owner's shell."""
    server = Endpoint(local_server(folder) or DEFAULT_SERVER)
    variables = [f"STOKER_SERVER={shlex.quote(server.url)}", f"STOKER_TOKEN={shlex.quote(token)}"]
    if projects[0] not in ("*", DEFAULT_PROJECT):
        variables.append(f"STOKER_PROJECT={shlex.quote(projects[0])}")
    text = f"\n{name} types:\n\n  export {' '.join(variables)}\n  stoker ls\n"
    if server.loopback:
        text += "\nThis address is good on this machine only; `stoker up --host ADDRESS` serves others.\n"
    return text


@token.command("list", short_help="List tokens: whose, for what, until when.")
@output_option("table", "json", "yaml")
@_data_option
def list_(form: str, data: Path | None) -> None:
    """List tokens: whose, for what, until when. One that has expired is listed for 30 days more."""
    from stoker.cli.output import Column, age_text, echo_objects

    records = [
        record.model_dump(mode="json", by_alias=True, exclude={"sha256"})
        for record in _carried_out(data, lambda tokens: tokens.listed())
    ]
    columns = (
        Column("NAME", "name"),
        Column("ROLE", "role"),
        Column("PROJECTS", "projects", lambda projects: "all" if "*" in projects else ",".join(projects), cut=True),
        Column("AGE", "createdAt", age_text, right=True),
        Column("EXPIRES", "expiresAt", _until),
    )
    echo_objects(columns, records, form)


@token.command("revoke", short_help="Make tokens worthless.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_data_option
def revoke(names: tuple[str, ...], data: Path | None) -> None:
    """Make tokens worthless, at once; jobs they submitted go on. The next `stoker up` makes another `admin`."""
    for name in names:

        def take_out(tokens: TokenFile, name: str = name) -> None:
            tokens.revoke(name)

        _carried_out(data, take_out)
        click.echo(f"token {name} revoked")


def _carried_out(data: Path | None, act: Callable[[TokenFile], Any]) -> Any:
    from stoker_api.tokens import TokenError, TokenFile

    folder = data or data_folder()
    if not folder.is_dir():
        raise BadInput(f"there is no data folder {folder}; `stoker up` makes it")
    try:
        return act(TokenFile.open(folder))
    except (TokenError, OSError) as error:
        raise BadInput(str(error)) from None


def _lifetime(text: str) -> timedelta | None:
    from stoker.spec.quantity import new_duration

    if text == NEVER:
        return None
    try:
        lifetime = timedelta(seconds=new_duration(text))
    except ValueError as error:
        raise BadInput(f"--expires {error}; '{NEVER}' does not expire") from None
    if not lifetime:
        raise BadInput("--expires must be longer than zero")
    return lifetime


def _until(at: str | None) -> str:
    from stoker.cli.output import age_s
    from stoker.spec.quantity import format_duration

    if at is None:
        return NEVER
    left_s = -age_s(at)
    return f"in {format_duration(round(left_s))}" if left_s > 0 else f"expired {at[:10]}"
