"""The push options of the api, the operator and `stoker up`. The exporter has its own parser for them.

Owns names and help; the only module of this room that needs click.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .link import client_context

if TYPE_CHECKING:
    from .sender import PushOptions

_EVERY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m)")


def params() -> list[click.Parameter]:
    """Each may come from the environment: STOKER_PUSH_URL, …; several headers or labels separated by blanks there."""
    file = click.Path(path_type=Path, dir_okay=False)
    return [
        _option("url", metavar="URL", help="Push all metrics to a remote-write receiver: https://…/api/v1/write."),
        _option("every", metavar="TIME", default="15s", callback=_seconds, help="Between two samples: 15s, 1m."),
        _option("token-file", type=file, help="A bearer token for it; read anew for each request."),
        _option("basic-auth-file", type=file, help="user:password for it; read likewise."),
        _option("ca", type=file, help="Certificates to trust there (PEM). Absent: the system's."),
        _option("header", metavar="NAME=VALUE", multiple=True, callback=_pairs, help="X-Scope-OrgID=team, say."),
        _option("label", metavar="NAME=VALUE", multiple=True, callback=_pairs, help="For every series: cluster=edge."),
        _option("allow-http", is_flag=True, help="Send the token or password over http:// too."),
    ]


def push_options(given: dict[str, Any]) -> PushOptions | None:
    """Takes the options out of what a command was given; None: nothing is to be pushed. Raises: click.UsageError."""
    url, every_s, token, basic, ca, headers, labels, allow_http = (
        given.pop(f"push_{name}")
        for name in ("url", "every", "token_file", "basic_auth_file", "ca", "header", "label", "allow_http")
    )
    if not url:
        return None
    # Here: `stoker up --help` works without prometheus_client.
    from .client import Receiver
    from .sender import PushOptions

    try:
        if ca is not None:
            client_context(ca)
        return PushOptions(Receiver(url, token, basic, ca, headers, allow_http), every_s, labels)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--push-…: {error}") from None


def _option(name: str, **how: Any) -> click.Option:
    return click.Option([f"--push-{name}"], envvar=f"STOKER_PUSH_{name.upper().replace('-', '_')}", **how)


def _seconds(_context: click.Context, _option: click.Parameter, text: str) -> float:
    found = _EVERY.fullmatch(text)
    seconds = float(found[1]) * (60 if found[2] == "m" else 1) if found else 0.0
    if not 0.5 <= seconds <= 3600:
        raise click.BadParameter(f"{text!r}: write 15s or 1m; 0.5s to 60m")
    return seconds


def _pairs(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{one!r}: write NAME=VALUE")
        found[name] = value
    return found
