"""`stoker cancel | suspend | resume | retry | delete`: one verb, any number of jobs."""

from __future__ import annotations

import click

from stoker.client.calls import Calls
from stoker.client.errors import ApiError

from .common import connected, jobs_argument, output_option


def _act(calls: Calls, verb: str, jobs: tuple[str, ...], form: str) -> None:
    """Carry `verb` out on each job; one refusal does not keep the others from it."""
    from stoker.cli.job_text import PHASE
    from stoker.cli.output import echo_data

    done, refused = [], 0
    for name in jobs:
        try:
            job = calls.act(name, verb)
        except ApiError as error:
            click.echo(f"stoker: {name}: {error}", err=True)
            refused += 1
            continue
        done.append(job)
        if form == "text":
            click.echo(f"{name}: {verb} requested; it is {PHASE.read(job)}")
    if form != "text":
        echo_data(done, form)
    if refused:
        raise click.exceptions.Exit(1)


@click.command(short_help="Stop jobs for good.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def cancel(calls: Calls, jobs: tuple[str, ...], form: str) -> None:
    """Stop each JOB for good. Work up to now is saved where the job can save; `stoker retry` runs it again."""
    _act(calls, "cancel", jobs, form)


@click.command(short_help="Save and stop jobs until they are resumed.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def suspend(calls: Calls, jobs: tuple[str, ...], form: str) -> None:
    """Save and stop each JOB, and give its GPUs to others, until `stoker resume`."""
    _act(calls, "suspend", jobs, form)


@click.command(short_help="Let suspended jobs run on.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def resume(calls: Calls, jobs: tuple[str, ...], form: str) -> None:
    """Queue each suspended JOB again; it goes on from its checkpoint."""
    _act(calls, "resume", jobs, form)


@click.command(short_help="Run failed or cancelled jobs again.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def retry(calls: Calls, jobs: tuple[str, ...], form: str) -> None:
    """Queue each Failed or Cancelled JOB once more; it goes on from its newest checkpoint."""
    _act(calls, "retry", jobs, form)


@click.command(short_help="Delete jobs, with their events and logs.")
@jobs_argument
@connected
def delete(calls: Calls, jobs: tuple[str, ...]) -> None:
    """Delete each JOB with its events and logs. One that runs is stopped first; `stoker cancel` keeps it."""
    refused = 0
    for name in jobs:
        try:
            calls.delete_job(name)
        except ApiError as error:
            click.echo(f"stoker: {name}: {error}", err=True)
            refused += 1
        else:
            click.echo(f"{name} deleted")
    if refused:
        raise click.exceptions.Exit(1)
