"""`stoker cancel | suspend | resume | retry | delete`: one verb, any number of jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stoker.client.errors import ApiError

from .common import connected, jobs_argument, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls


def _verb(verb: str, text: str) -> click.Command:
    @click.command(verb, help=text)
    @jobs_argument
    @output_option("text", "json", "yaml")
    @connected
    def command(calls: Calls, jobs: tuple[str, ...], form: str) -> None:
        from stoker.cli.job_text import PHASE
        from stoker.cli.output import echo_data

        done: list[Any] = []

        def act(name: str) -> None:
            done.append(calls.act(name, verb))
            if form == "text":
                click.echo(f"{name}: {verb} requested; it is {PHASE.read(done[-1])}")

        refused = _refused(jobs, act)
        if form != "text":
            echo_data(done, form)
        click.get_current_context().exit(refused)

    return command


def _refused(jobs: tuple[str, ...], act: Callable[[str], object]) -> int:
    """The exit code after all; one refusal does not keep the other jobs from it."""
    code = 0
    for name in jobs:
        try:
            act(name)
        except ApiError as error:
            click.echo(f"stoker: {name}: {error}", err=True)
            code = error.exit_code
    return code


cancel = _verb(
    "cancel",
    "Stop each JOB for good. Work up to now is saved where the job can save; `stoker retry` runs it again.",
)
suspend = _verb("suspend", "Save and stop each JOB, and give its GPUs to others, until `stoker resume`.")
resume = _verb("resume", "Queue each suspended JOB again; it goes on from its checkpoint.")
retry = _verb("retry", "Queue each Failed or Cancelled JOB once more; it goes on from its newest checkpoint.")


@click.command()
@jobs_argument
@connected
def delete(calls: Calls, jobs: tuple[str, ...]) -> None:
    """Delete each JOB with its events and logs. One that runs is stopped first; `stoker cancel` keeps it."""

    def act(name: str) -> None:
        calls.delete_job(name)
        click.echo(f"{name} deleted")

    click.get_current_context().exit(_refused(jobs, act))
