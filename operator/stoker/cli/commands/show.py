"""`stoker ls | get | why`: looking, without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from stoker.client.config import ALL_PROJECTS
from stoker.client.errors import ApiError, BadInput

from .common import complete_jobs, connected, job_argument, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls

NEWEST = 50
SORTS = ("created", "started", "finished", "duration", "priority", "gpus", "name")
_OBJECTS = ("queues", "nodes", "runtimes")
_CONDITIONS = {
    "user": "user",
    "gpuType": "gpu_type",
    "since": "since",
    "label": "label",
    "text": "text",
    "sort": "sort",
}
"""Of the list's route → of our options."""
_KINDS = {"job": "jobs", "queue": "queues", "node": "nodes", "runtime": "runtimes"}


def _list_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option("-q", "--queue", help="Only jobs of this queue."),
            click.option(
                "--phase",
                "--state",
                "phases",
                metavar="PHASE[,...]",
                help="Only jobs in these phases, for example Queued,Running.",
            ),
            click.option("--user", help="Only jobs that this user submitted."),
            click.option("--mine", is_flag=True, help="Only jobs that you submitted."),
            click.option("--gpu-type", metavar="TYPE", help="Only jobs with GPUs of this type, for example h100."),
            click.option("--since", metavar="WHEN", help="Only jobs created since: 7d, 12h, a date or a time (UTC)."),
            click.option("-l", "--label", metavar="K=V[,...]", help="Only jobs with these labels; K!=V, K and !K too."),
            click.option("--text", help="Only jobs with this in the name, labels, command, message or reason."),
            click.option(
                "--sort",
                metavar="WHAT",
                help=f"By {', '.join(SORTS)}; -WHAT is backwards. [default: -created, the newest first]",
            ),
            click.option("-a", "--all", "everything", is_flag=True, help=f"All jobs, not just the first {NEWEST}."),
        ]
    ):
        function = option(function)
    return function


@click.command()
@_list_options
@output_option("table", "json", "yaml", "name")
@connected
def ls(calls: Calls, form: str, **asked: Any) -> None:
    """List jobs, newest first. With `-p -` those of all projects that the token may see."""
    _list(calls, form, asked)


@click.command()
@click.argument("what", metavar="JOB|jobs|queues|nodes|runtimes", shell_complete=complete_jobs)
@click.argument("name", required=False)
@_list_options
@output_option("table", "json", "yaml", "name")
@connected
def get(calls: Calls, what: str, name: str | None, form: str, **asked: Any) -> None:
    """Show one job; or all `jobs`, `queues`, `nodes` or `runtimes`, or the one called NAME of them.

    The options that choose and sort are for `get jobs`.
    """
    kind = _KINDS.get(what, what)
    if (kind != "jobs" or name) and (given := [option for option, value in asked.items() if value]):
        option = {"phases": "phase", "everything": "all"}.get(given[0], given[0]).replace("_", "-")
        raise BadInput(f"--{option} chooses among jobs: stoker get jobs --{option} …")
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
        _list(calls, form, asked)
    elif kind != "jobs" and name is not None:
        raise BadInput(f"`stoker get {what} {name}`: one job at a time, or: jobs, queues, nodes, runtimes")
    else:
        from stoker.cli.job_text import job_details
        from stoker.cli.output import echo_data

        job = calls.job(name or what)
        if form == "table":
            click.echo(job_details(job), nl=False)
        elif form == "name":
            click.echo(job["metadata"]["name"])
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


def _list(calls: Calls, form: str, asked: Mapping[str, Any]) -> None:
    from stoker.cli.job_text import JOBS, NAME, PROJECT
    from stoker.cli.output import echo_data, echo_items
    from stoker.spec.phase import Phase

    wanted = []
    for part in (asked["phases"] or "").split(","):
        if part.strip():
            try:
                wanted.append(Phase(part.strip().capitalize()))
            except ValueError:
                raise BadInput(f"{part!r} is not a phase; phases: {', '.join(Phase)}") from None
    conditions = {name: asked[option] for name, option in _CONDITIONS.items()}
    if asked["mine"]:
        if asked["user"]:
            raise BadInput("--mine and --user: choose one")
        conditions["user"] = calls.whoami()["name"]
    everything = asked["everything"]
    limit = None if everything else NEWEST + 1
    jobs = list(calls.jobs(queue=asked["queue"], phases=wanted, limit=limit, **conditions))
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
        click.echo(
            f"no such jobs{where}" if asked["queue"] or wanted or any(conditions.values()) else f"no jobs{where}",
            err=True,
        )
    else:
        echo_items([PROJECT, *JOBS] if calls.project == ALL_PROJECTS else JOBS, jobs)
    if more:
        click.echo(f"the {'first' if asked['sort'] else 'newest'} {NEWEST}; --all lists all", err=True)
