"""`stoker token add`: made in the server's data folder, by whoever may read that; no route makes tokens."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.config import data_folder
from stoker.cli.errors import BadInput


@click.group(short_help="Make tokens for the server of a data folder.")
def token() -> None:
    """Make tokens for the server of a data folder."""


@token.command("add", short_help="Make a token and print it, once.")
@click.argument("name")
@click.option("--role", type=click.Choice(["reader", "user", "admin"]), default="user", show_default=True)
@click.option(
    "--project", "projects", multiple=True, help="A project it is for; '*' is all. Repeatable.", required=True
)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="[STOKER_HOME, else ~/.stoker]")
def add(name: str, role: str, projects: tuple[str, ...], data: Path | None) -> None:
    """Make the token NAME and print it, for the only time; a running server knows it at once."""
    from stoker_api.tokens import TokenError, TokenFile

    folder = data or data_folder()
    if not folder.is_dir():
        raise BadInput(f"there is no data folder {folder}; `stoker up` makes it")
    try:
        click.echo(TokenFile.open(folder).add(name, role, projects))
    except TokenError as error:
        raise BadInput(str(error)) from None
