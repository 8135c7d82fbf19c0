"""`stoker ls | get | why`: looking, without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.client.config import ALL_PROJECTS
from stoker.client.errors import ApiError, BadInput

from .common import complete_jobs, connected, job_argument, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls

NEWEST = 50
_OBJECTS = ("queues", "nodes", "runtimes")
_KINDS = {"job": "jobs", "queue": "queues", "node": "nodes", "runtime": "runtimes"}


@click.command()
@click.option("-q", "--queue", help="Only jobs of this queue.")
@click.option("--phase", "phases", metavar="PHASE[,...]", help="Only jobs in these phases, for example Queued,Running.")
@click.option("-a", "--all", "everything", is_flag=True, help=f"All jobs, not just the newest {NEWEST}.")
@output_option("table", "json", "yaml", "name")
@connected
def ls(calls: Calls, queue: str | None, phases: str | None, everything: bool, form: str) -> None:
    """List jobs, newest first. With `-p -` those of all projects that the token may see."""
    _list(calls, queue, phases, everything, form)


@click.command()
@click.argument("what", metavar="JOB|jobs|queues|nodes|runtimes", shell_complete=complete_jobs)
@click.argument("name", required=False)
@output_option("table", "json", "yaml")
@connected
def get(calls: Calls, what: str, name: str | None, form: str) -> None:
    """Show one job; or all `jobs`, `queues`, `nodes` or `runtimes`, or the one called NAME of them."""
    kind = _KINDS.get(what, what)
    if kind in _OBJECTS:
        from stoker.cli.job_text import NAME
        from stoker.cli.object_tables import OF
        from stoker.cli.output import echo_objects

        if kind == "nodes":  # the server has no route for one
            items = [node for node in calls.items(kind) if name in (None, NAME.read(node))]
            if name and not items:
                raise ApiError(404, "NotFound", f"there is no node {name!r}; `stoker get nodes` lists them")
        else:
            items = [calls.item(kind, name)] if name else calls.items(kind)
        echo_objects(OF[kind], items, form, one=name is not None)
    elif kind == "jobs" and name is None:
        _list(calls, None, None, False, form)
    elif kind != "jobs" and name is not None:
        raise BadInput(f"`stoker get {what} {name}`: one job at a time, or: jobs, queues, nodes, runtimes")
    else:
        from stoker.cli.job_text import job_details
        from stoker.cli.output import echo_data

        job = calls.job(name or what)
        if form == "table":
            click.echo(job_details(job), nl=False)
        else:
            echo_data(job, form)


@click.command()
@job_argument
@output_option("text", "json", "yaml")
@connected
def why(calls: Calls, job: str, form: str) -> None:
    """Say why JOB is where it is: what it waits for, short by how much, and what would start it."""
    from stoker.cli.job_text import explanation_text
    from stoker.cli.output import echo_data

    explanation = calls.explain(job)
    if form == "text":
        click.echo(explanation_text(job, explanation))
    else:
        echo_data(explanation, form)


def _list(calls: Calls, queue: str | None, phases: str | None, everything: bool, form: str) -> None:
    from stoker.cli.job_text import JOBS, NAME, PROJECT
    from stoker.cli.output import echo_data, echo_items
    from stoker.spec.phase import Phase

    wanted = []
    for part in (phases or "").split(","):
        if part.strip():
            try:
                wanted.append(Phase(part.strip().capitalize()))
            except ValueError:
                raise BadInput(f"{part!r} is not a phase; phases: {', '.join(Phase)}") from None
    limit = None if everything else NEWEST + 1
    jobs = list(calls.jobs(queue=queue, phases=wanted, limit=limit))
    more = not everything and len(jobs) > NEWEST
    if more:
        jobs = jobs[:NEWEST]
    if form == "name":
        for job in jobs:
            click.echo(NAME.read(job))
    elif form != "table":
        echo_data(jobs, form)
    elif not jobs:
        where = "" if calls.project == ALL_PROJECTS else f" in project {calls.project}"
        click.echo(f"no such jobs{where}" if queue or wanted else f"no jobs{where}", err=True)
    else:
        echo_items([PROJECT, *JOBS] if calls.project == ALL_PROJECTS else JOBS, jobs)
    if more:
        click.echo(f"the newest {NEWEST}; --all lists all", err=True)
