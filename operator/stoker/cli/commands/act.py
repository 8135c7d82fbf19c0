"""`stoker cancel | suspend | resume | retry | delete`: one verb, any number of jobs, or all that options choose."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from stoker.client.errors import ApiError, BadInput
from stoker.spec.phase import ENDED, Phase

from . import choosing
from .choosing import choice_options, chosen
from .common import connected, for_job, output_option
from .names import complete_in

if TYPE_CHECKING:
    from stoker.client.calls import Calls

_MOST = 1000
"""At once; the rest is a second command."""
_UNENDED = tuple(phase for phase in Phase if phase not in ENDED)


def _jobs_options(*phases: Phase) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Jobs by name, or `--all` in `phases` that the options choose."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        every = click.option(
            "--all", "every", is_flag=True, help="All of the project, or those that the options choose; shown first."
        )
        yes = click.option("-y", "--yes", is_flag=True, help="With --all: do not ask.")
        names = click.argument("names", metavar="JOB...", nargs=-1, shell_complete=complete_in(*phases))
        return names(every(yes(choice_options(function))))

    return add


def _meant(
    calls: Calls, verb: str, names: Sequence[str], phases: Collection[Phase], given: Mapping[str, Any]
) -> Sequence[str]:
    """The jobs to act on; with --all shown and agreed to. Raises: BadInput."""
    asked = {name: value for name, value in given.items() if name not in ("every", "yes")}
    if names and (given["every"] or chosen(asked)):
        raise BadInput(f"give jobs by name, or {chosen(asked)[0] if chosen(asked) else '--all'}, not both")
    if names:
        return names
    if not given["every"]:
        what = f"stoker {verb} --all {chosen(asked)[0]} …" if chosen(asked) else f"stoker {verb} JOB, or --all"
        raise BadInput(f"which jobs? {what}")
    from stoker.cli.job_table import JOBS
    from stoker.cli.job_text import NAME
    from stoker.cli.output import echo_items

    found = list(choosing.jobs(calls, asked, phases=phases, limit=_MOST))
    if not found:
        click.echo(f"no such jobs in project {calls.project}", err=True)
        return ()
    if not given["yes"]:
        echo_items(JOBS, found)
        count = f"{len(found)} job{'s' if len(found) > 1 else ''}"
        if not sys.stdin.isatty():
            raise BadInput(f"`{verb} --all` means these {count}; add --yes to do it")
        click.confirm(f"{verb} {count}?", abort=True, err=True)
    return [NAME.read(job) for job in found]


def _verb(verb: str, text: str, *phases: Phase) -> click.Command:
    @click.command(verb, help=text)
    @_jobs_options(*phases)
    @output_option("text", "json", "yaml")
    @connected
    def command(calls: Calls, names: tuple[str, ...], form: str, **given: Any) -> None:
        from stoker.cli.job_text import PHASE
        from stoker.cli.output import echo_data

        done: list[Any] = []

        def act(name: str) -> None:
            done.append(calls.act(name, verb))
            if form == "text":
                click.echo(f"{name}: {verb} requested; it is {PHASE.read(done[-1])}")

        refused = _refused(calls, _meant(calls, verb, names, phases, given), act)
        if form != "text":
            echo_data(done, form)
        click.get_current_context().exit(refused)

    return command


def _refused(calls: Calls, jobs: Sequence[str], act: Callable[[str], object]) -> int:
    """The exit code after all; one refusal does not keep the other jobs from it."""
    code = 0
    for name in jobs:
        try:
            for_job(calls, name, act)
        except ApiError as error:
            click.echo(f"stoker: {name}: {error}", err=True)
            code = error.exit_code
    return code


cancel = _verb(
    "cancel",
    "Stop each JOB for good. Work up to now is saved where the job can save; `stoker retry` runs it again.",
    *_UNENDED,
)
suspend = _verb(
    "suspend",
    "Save and stop each JOB, and give its GPUs to others, until `stoker resume`.",
    *(phase for phase in _UNENDED if phase is not Phase.SUSPENDED),
)
resume = _verb(
    "resume", "Queue each suspended JOB again; it goes on from its checkpoint.", Phase.SUSPENDED, Phase.STOPPING
)
retry = _verb(
    "retry",
    "Queue each Failed or Cancelled JOB once more; it goes on from its newest checkpoint.",
    Phase.FAILED,
    Phase.CANCELLED,
)


@click.command()
@_jobs_options(*ENDED)
@connected
def delete(calls: Calls, names: tuple[str, ...], **given: Any) -> None:
    """Delete each JOB with its events and logs. One that runs is stopped first; `stoker cancel` keeps it.

    --all means those that have ended, unless --phase says otherwise.
    """

    def act(name: str) -> None:
        calls.delete_job(name)
        click.echo(f"{name} deleted")

    click.get_current_context().exit(_refused(calls, _meant(calls, "delete", names, tuple(ENDED), given), act))
