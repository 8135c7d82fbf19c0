"""`stoker cancel | suspend | resume | retry | delete`: one verb, any number of jobs."""

from __future__ import annotations

import click

from stoker.client.client import Client
from stoker.client.errors import ApiError

from .common import connected, jobs_argument, output_option


def _act(client: Client, verb: str, jobs: tuple[str, ...], form: str) -> None:
    """Carry `verb` out on each job; one refusal does not keep the others from it."""
    from stoker.cli.output import echo_data

    done, refused = [], 0
    for name in jobs:
        try:
            job = getattr(client, verb)(name)
        except ApiError as error:
            click.echo(f"stoker: {name}: {error}", err=True)
            refused += 1
            continue
        done.append(job)
        if form == "text":
            click.echo(f"{name}: {verb} requested; it is {job.status.phase}")
    if form != "text":
        echo_data(done, form)
    if refused:
        raise click.exceptions.Exit(1)


@click.command(short_help="Stop jobs for good.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def cancel(client: Client, jobs: tuple[str, ...], form: str) -> None:
    """Stop each JOB for good. Work up to now is saved where the job can save; `stoker retry` runs it again."""
    _act(client, "cancel", jobs, form)


@click.command(short_help="Save and stop jobs until they are resumed.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def suspend(client: Client, jobs: tuple[str, ...], form: str) -> None:
    """Save and stop each JOB, and give its GPUs to others, until `stoker resume`."""
    _act(client, "suspend", jobs, form)


@click.command(short_help="Let suspended jobs run on.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def resume(client: Client, jobs: tuple[str, ...], form: str) -> None:
    """Queue each suspended JOB again; it goes on from its checkpoint."""
    _act(client, "resume", jobs, form)


@click.command(short_help="Run failed or cancelled jobs again.")
@jobs_argument
@output_option("text", "json", "yaml")
@connected
def retry(client: Client, jobs: tuple[str, ...], form: str) -> None:
    """Queue each Failed or Cancelled JOB once more; it goes on from its newest checkpoint."""
    _act(client, "retry", jobs, form)


@click.command(short_help="Delete jobs, with their events and logs.")
@jobs_argument
@connected
def delete(client: Client, jobs: tuple[str, ...]) -> None:
    """Delete each JOB with its events and logs. One that runs is stopped first; `stoker cancel` keeps it."""
    refused = 0
    for name in jobs:
        try:
            client.delete(name)
        except ApiError as error:
            click.echo(f"stoker: {name}: {error}", err=True)
            refused += 1
        else:
            click.echo(f"{name} deleted")
    if refused:
        raise click.exceptions.Exit(1)
