"""`stoker secret set | list | delete`: values that jobs of a project are given and that no one can read again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.client.errors import BadInput
from stoker.client.job_options import secret_name
from stoker.spec.names import SECRET_VALUE

from .common import Group, connected, output_option
from .names import complete_secrets

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.group(cls=Group)
def secret() -> None:
    """Secrets of a project, for its jobs: `stoker run --secret WANDB_API_KEY=NAME` (docs/secrets.md)."""


_name_argument = click.argument("name", metavar="NAME[/KEY]", shell_complete=complete_secrets)


@secret.command("set", short_help="Set a value of a secret.")
@_name_argument
@click.option("-f", "--file", "path", metavar="FILE", help="Take the value from a file; - is standard input.")
@connected
def set_(calls: Calls, name: str, path: str | None) -> None:
    """Set the value of the secret NAME, or one of several by KEY. It is asked for, or read from a file or a pipe.

    \b
    stoker secret set wandb
    stoker secret set gcs/key.json --file key.json
    pass show hf | stoker secret set HF_TOKEN

    A name like HF_TOKEN means hf-token, as with `run --secret HF_TOKEN`. One line break at the end is left out.
    No value can be an argument: others see those.
    """
    named, key = _parts(name)
    shown = calls.set_secret(named, key, _value(name, path))
    project = calls.project
    click.echo(f"secret {shown['name']} of project {project} has: {', '.join(shown['keys'])}")


@secret.command("list", short_help="List secrets: their names, keys and dates.")
@output_option("table", "json", "yaml")
@connected
def list_(calls: Calls, form: str) -> None:
    """List the project's secrets: names, keys and dates, never a value."""
    from stoker.cli.object_tables import SECRETS
    from stoker.cli.output import echo_objects

    echo_objects(SECRETS, calls.secrets(), form)


@secret.command("delete", short_help="Delete a secret, or one of its values.")
@_name_argument
@connected
def delete(calls: Calls, name: str) -> None:
    """Delete the secret NAME with all its values, or the one of KEY. Jobs that need it and have not started wait."""
    named, key = _parts(name)
    calls.delete_secret(named, key if "/" in name else None)
    click.echo(f"{named}{'/' + key if '/' in name else ''} deleted")


def _parts(text: str) -> tuple[str, str]:
    name, slash, key = text.partition("/")
    if not name or (slash and not key):
        raise BadInput(f"{text}: write NAME or NAME/KEY")
    return name if name == name.lower() and "_" not in name else secret_name(name), key or SECRET_VALUE


def _value(name: str, path: str | None) -> str:
    """Raises: BadInput; its message never holds the value."""
    if path is None and sys.stdin.isatty():
        value: str = click.prompt(f"value of {name}", hide_input=True, err=True, prompt_suffix=": ")
        return value
    try:
        data = sys.stdin.buffer.read() if path in (None, "-") else Path(str(path)).expanduser().read_bytes()
        value = data.decode("utf-8")
    except OSError as error:
        raise BadInput(f"--file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput("a secret is text, in UTF-8; encode other data, for example as base64") from None
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise BadInput("the value is empty")
    return value
