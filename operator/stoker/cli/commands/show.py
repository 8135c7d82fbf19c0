"""`stoker ls | get | why`: looking, without changing anything."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from stoker.client.client import ALL_PROJECTS, Client
from stoker.client.errors import ApiError, BadInput

from .common import complete_jobs, connected, job_argument, output_option

NEWEST = 50
_KINDS = {"job": "jobs", "queue": "queues", "node": "nodes", "runtime": "runtimes"}


@click.command(short_help="List jobs, newest first.")
@click.option("-q", "--queue", help="Only jobs of this queue.")
@click.option("--phase", "phases", metavar="PHASE[,...]", help="Only jobs in these phases, for example Queued,Running.")
@click.option("-a", "--all", "everything", is_flag=True, help=f"All jobs, not just the newest {NEWEST}.")
@output_option("table", "json", "yaml", "name")
@connected
def ls(client: Client, queue: str | None, phases: str | None, everything: bool, form: str) -> None:
    """List jobs, newest first. With `-p -` those of all projects that the token may see."""
    _list(client, queue, phases, everything, form)


@click.command(short_help="Show a job, or jobs, queues, nodes or runtimes.")
@click.argument("what", metavar="JOB|jobs|queues|nodes|runtimes", shell_complete=complete_jobs)
@click.argument("name", required=False)
@output_option("table", "json", "yaml")
@connected
def get(client: Client, what: str, name: str | None, form: str) -> None:
    """Show one job; or all `jobs`, `queues`, `nodes` or `runtimes`, or the one called NAME of them."""
    from stoker.cli.output import echo_data, echo_table, job_details, node_table, queue_table, runtime_table

    kind = _KINDS.get(what, what)
    if kind == "queues":
        queues = (client.queue(name),) if name else client.queues()
        if form == "table":
            echo_table(*queue_table(queues))
        else:
            echo_data(queues[0] if name else queues, form)
    elif kind == "runtimes":
        runtimes = (client.runtime(name),) if name else client.runtimes()
        if form == "table":
            echo_table(*runtime_table(runtimes))
        else:
            echo_data(runtimes[0] if name else runtimes, form)
    elif kind == "nodes":
        nodes = [node for node in client.nodes() if name in (None, node.metadata.name)]
        if name and not nodes:
            raise ApiError(404, "NotFound", f"there is no node {name!r}; `stoker get nodes` lists them")
        if form == "table":
            echo_table(*node_table(nodes))
        else:
            echo_data(nodes[0] if name else nodes, form)
    elif kind == "jobs" and name is None:
        _list(client, None, None, False, form)
    elif kind != "jobs" and name is not None:
        raise BadInput(f"`stoker get {what} {name}`: one job at a time, or: jobs, queues, nodes, runtimes")
    else:
        job = client.get(name or what)
        if form == "table":
            click.echo(job_details(job, datetime.now(UTC)), nl=False)
        else:
            echo_data(job, form)


@click.command(short_help="Say why a job is where it is, and what would start it.")
@job_argument
@output_option("text", "json", "yaml")
@connected
def why(client: Client, job: str, form: str) -> None:
    """Say why JOB is where it is: what it waits for, short by how much, and what would start it."""
    from stoker.cli.output import echo_data, explanation_text

    explanation = client.explain(job)
    if form == "text":
        click.echo(explanation_text(job, explanation))
    else:
        echo_data(explanation, form)


def _list(client: Client, queue: str | None, phases: str | None, everything: bool, form: str) -> None:
    from stoker.cli.output import echo_data, echo_table, job_table
    from stoker.spec.job import Phase

    wanted = []
    for part in (phases or "").split(","):
        if part.strip():
            try:
                wanted.append(Phase(part.strip().capitalize()))
            except ValueError:
                raise BadInput(f"{part!r} is no phase; there is: {', '.join(Phase)}") from None
    limit = None if everything else NEWEST + 1
    jobs = list(client.list(queue=queue, phases=wanted, limit=limit))
    more = not everything and len(jobs) > NEWEST
    if more:
        jobs = jobs[:NEWEST]
    if form == "name":
        for job in jobs:
            click.echo(job.metadata.name)
    elif form != "table":
        echo_data(jobs, form)
    elif not jobs:
        where = "" if client.project == ALL_PROJECTS else f" in project {client.project}"
        click.echo(f"no such jobs{where}" if queue or wanted else f"no jobs{where}", err=True)
    else:
        echo_table(*job_table(jobs, datetime.now(UTC), projects=client.project == ALL_PROJECTS))
    if more:
        click.echo(f"the newest {NEWEST}; --all lists all", err=True)
