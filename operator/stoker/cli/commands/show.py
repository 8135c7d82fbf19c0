"""`stoker ls | get | why`: looking, without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from stoker.client.config import ALL_PROJECTS
from stoker.client.errors import ApiError, BadInput

from . import choosing
from .choosing import CHOICES, choice_options, chosen
from .common import connected, for_job, job_argument, output_option
from .names import complete_objects, complete_whats

if TYPE_CHECKING:
    from stoker.cli.watching import Changes, Show
    from stoker.client.calls import Calls

NEWEST = 50
SORTS = ("created", "started", "finished", "duration", "priority", "gpus", "name")
_OBJECTS = ("queues", "nodes", "runtimes")
_KINDS = {"job": "jobs", "queue": "queues", "node": "nodes", "runtime": "runtimes"}


def _list_options(function: Callable[..., Any]) -> Callable[..., Any]:
    sort = click.option(
        "--sort",
        metavar="WHAT",
        help=f"By {', '.join(SORTS)}; -WHAT is backwards. [default: -created, the newest first]",
        shell_complete=lambda ctx, param, typed: [name for name in SORTS if name.startswith(typed)],
    )
    everything = click.option("-a", "--all", "everything", is_flag=True, help=f"All jobs, not just the first {NEWEST}.")
    watch = click.option("-w", "--watch", is_flag=True, help="Show it anew as it changes, until Ctrl-C.")
    return choice_options(sort(everything(watch(function))))


@click.command()
@_list_options
@output_option("table", "wide", "json", "yaml", "name")
@connected
def ls(calls: Calls, form: str, watch: bool, **asked: Any) -> None:
    """List jobs, newest first. With `-p -` those of all projects that the token may see."""
    _shown(_jobs(calls, form, asked), form, watch=watch)


@click.command()
@click.argument("what", metavar="JOB|jobs|queues|nodes|runtimes", shell_complete=complete_whats)
@click.argument("name", required=False, shell_complete=complete_objects)
@_list_options
@output_option("table", "wide", "json", "yaml", "name")
@connected
def get(calls: Calls, what: str, name: str | None, form: str, watch: bool, **asked: Any) -> None:
    """Show one job; or all `jobs`, `queues`, `nodes` or `runtimes`, or the one called NAME of them.

    The options that choose and sort are for `get jobs`.
    """
    kind = _KINDS.get(what, what)
    if (kind != "jobs" or name) and (given := chosen(asked)):
        raise BadInput(f"{given[0]} chooses among jobs: stoker get jobs {given[0]} …")
    if kind in _OBJECTS:
        show = _objects(calls, kind, name, form)
    elif kind == "jobs" and name is None:
        show = _jobs(calls, form, asked)
    elif kind != "jobs" and name is not None:
        raise BadInput(f"`stoker get {what} {name}`: one job at a time, or: jobs, queues, nodes, runtimes")
    else:
        for_job(calls, name or what, lambda job: _shown(_job(calls, job, form), form, watch=watch))
        return
    _shown(show, form, watch=watch)


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


def _shown(show: Show, form: str, *, watch: bool) -> None:
    """Once, or again and again. Raises: BadInput."""
    if not watch:
        show(None)
    elif form in ("json", "yaml"):
        raise BadInput(f"--watch shows tables; -o {form} is for one look")
    else:
        from stoker.cli.watching import watch as shown_anew

        shown_anew(show)


def _objects(calls: Calls, kind: str, name: str | None, form: str) -> Show:
    def show(changes: Changes | None) -> None:
        from stoker.cli.object_tables import OF
        from stoker.cli.output import echo_objects

        items = [calls.item(kind, name)] if name else calls.items(kind)
        echo_objects(OF[kind], items, form, one=name is not None, changes=changes)

    return show


def _job(calls: Calls, name: str, form: str) -> Show:
    def show(changes: Changes | None) -> None:
        from stoker.cli.job_table import JOBS, JOBS_WIDE
        from stoker.cli.output import echo_objects

        job = calls.job(name)
        if form == "table" and changes is None:
            from stoker.cli.job_details import job_details

            click.echo(job_details(job, usage=_usage(calls, job)), nl=False)
        else:
            echo_objects(JOBS_WIDE if form == "wide" else JOBS, [job], form, one=True, changes=changes)

    return show


def _usage(calls: Calls, job: Any) -> Any:
    """The report on what it had, which knows the prices; None: it had none."""
    from stoker.cli.output import values

    used, name = values(job, "status.usage metadata.name")
    if not used:
        return None
    try:
        return calls.job_usage(name)
    except ApiError:
        return None  # all else that is known of the job is worth showing


def _jobs(calls: Calls, form: str, asked: Mapping[str, Any]) -> Show:
    limit = None if asked["everything"] else NEWEST + 1
    lists: Iterator[list[Any]] | None = None

    def show(changes: Changes | None) -> bool:
        nonlocal lists
        from stoker.cli.job_table import JOBS, JOBS_WIDE, PROJECT
        from stoker.cli.output import echo_objects

        if lists is None and changes is not None and limit is not None:
            # In a pipe the server says when it has changed. On a terminal ages grow meanwhile.
            lists = choosing.watched_jobs(calls, asked, sort=asked["sort"], limit=limit)
        found = next(lists) if lists else list(choosing.jobs(calls, asked, sort=asked["sort"], limit=limit))
        more = limit is not None and len(found) > NEWEST
        if not found and changes is None and form in ("table", "wide"):
            such = "such " if chosen({name: asked[name] for name in CHOICES}) else ""
            where = "" if calls.project == ALL_PROJECTS else f" in project {calls.project}"
            click.echo(f"no {such}jobs{where}", err=True)
        else:
            columns = JOBS_WIDE if form == "wide" else JOBS
            if calls.project == ALL_PROJECTS and form != "name":
                columns = (PROJECT, *columns)
            echo_objects(columns, found[:NEWEST] if more else found, form, changes=changes)
        if more and changes is None:
            click.echo(f"the {'first' if asked['sort'] else 'newest'} {NEWEST}; --all lists all", err=True)
        return lists is not None

    return show
