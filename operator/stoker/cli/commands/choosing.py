"""Options that choose jobs: of lists, and of what is done to many (`--all`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from stoker.client.errors import BadInput
from stoker.spec.phase import Phase

from .names import complete_of, complete_phases

if TYPE_CHECKING:
    from stoker.client.calls import Calls

_CONDITIONS = {"user": "user", "gpuType": "gpu_type", "since": "since", "label": "label", "text": "text"}
"""Of the list's route → of our options."""
CHOICES = ("queue", "phases", "mine", *_CONDITIONS.values())
"""What `choice_options` gives a command."""


def choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option("-q", "--queue", help="Only jobs of this queue.", shell_complete=complete_of("queues")),
            click.option(
                "--phase",
                "--state",
                "phases",
                metavar="PHASE[,...]",
                help="Only jobs in these phases, for example Queued,Running.",
                shell_complete=complete_phases,
            ),
            click.option("--user", help="Only jobs that this user submitted."),
            click.option("--mine", is_flag=True, help="Only jobs that you submitted."),
            click.option("--gpu-type", metavar="TYPE", help="Only jobs with GPUs of this type, for example h100."),
            click.option("--since", metavar="WHEN", help="Only jobs created since: 7d, 12h, a date or a time (UTC)."),
            click.option("-l", "--label", metavar="K=V[,...]", help="Only jobs with these labels; K!=V, K and !K too."),
            click.option("--text", help="Only jobs with this in the name, labels, command, message or reason."),
        ]
    ):
        function = option(function)
    return function


def chosen(asked: Mapping[str, Any]) -> list[str]:
    """The options given, as they are typed."""
    names = {"phases": "phase", "everything": "all"}
    return [f"--{names.get(option, option).replace('_', '-')}" for option, value in asked.items() if value]


def jobs(
    calls: Calls,
    asked: Mapping[str, Any],
    *,
    phases: Collection[Phase] = (),
    sort: str | None = None,
    limit: int | None = None,
) -> Iterator[Any]:
    """The jobs that the options choose. `phases`: where none are asked for. Raises: BadInput, ApiError."""
    conditions = _conditions(calls, asked)
    wanted = _phases(asked["phases"]) or list(phases)
    return calls.jobs(queue=asked["queue"], phases=wanted, limit=limit, sort=sort, **conditions)


def watched_jobs(calls: Calls, asked: Mapping[str, Any], *, sort: str | None, limit: int) -> Iterator[list[Any]]:
    """The first of the jobs that the options choose, as they are, then again at each change. Raises: as `jobs`."""
    conditions = _conditions(calls, asked)
    wanted = _phases(asked["phases"])
    return calls.watch_jobs(dict, queue=asked["queue"], phases=wanted, limit=limit, sort=sort, **conditions)


def _conditions(calls: Calls, asked: Mapping[str, Any]) -> dict[str, str | None]:
    conditions = {name: asked[option] for name, option in _CONDITIONS.items()}
    if asked["mine"]:
        if asked["user"]:
            raise BadInput("--mine and --user: choose one")
        conditions["user"] = calls.whoami()["name"]
    return conditions


def _phases(text: str | None) -> list[Phase]:
    wanted = []
    for part in (text or "").split(","):
        if part.strip():
            try:
                wanted.append(Phase(part.strip().capitalize()))
            except ValueError:
                raise BadInput(f"{part!r} is not a phase; phases: {', '.join(Phase)}") from None
    return wanted
