"""`stoker usage`: what jobs have had of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stoker.client.config import ALL_PROJECTS
from stoker.client.errors import BadInput

from .common import connected_cluster_wide, output_option
from .names import complete_jobs, complete_of, complete_projects

if TYPE_CHECKING:
    from stoker.client.calls import Calls

GROUPS = ("user", "queue", "project", "job", "model", "day", "hour")


@click.command()
@click.argument("job", metavar="[JOB]", required=False, shell_complete=complete_jobs)
@click.option("--by", metavar="WHAT[,...]", help=f"Sum by {', '.join(GROUPS)}. [default: project,queue,user]")
@click.option("--since", metavar="WHEN", help="A duration before now, a date or a time (UTC). [default: 30d]")
@click.option("--until", metavar="WHEN", help="As --since. [default: now]")
@click.option(
    "-q",
    "--queue",
    help="Only jobs of this queue; with hints on what to change.",
    shell_complete=complete_of("queues"),
)
@click.option("--user", help="Only jobs that this user submitted.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="The most rows. [default: 1000]")
@click.option(
    "-p",
    "--project",
    metavar="PROJECT",
    help="Only this project. [default: all that the token sees]",
    shell_complete=complete_projects,
)
@output_option("table", "csv", "json")
@connected_cluster_wide
def usage(calls: Calls, job: str | None, project: str | None, form: str, **filters: Any) -> None:
    """Show the GPU usage of JOB, also after its deletion; without JOB, GPU time summed over many jobs.

    Only GPUs are counted: a job without GPUs has no usage. Unobserved time is allocated but not observed; it is never
    counted as idle. SM ACTIVE is of the observed time of GPUs that report it (Hopper and newer). docs/usage.md has the
    rest.
    """
    project = project or (click.get_current_context().find_root().obj or {}).get("project")
    if job is not None:
        if given := [f"--{name}" for name, value in filters.items() if value is not None]:
            raise BadInput(f"{', '.join(given)}: works without JOB; the usage of one job is all it has had")
        _job(calls, job, project, form)
        return
    groups = [part.strip() for part in (filters.pop("by") or "project,queue,user").split(",")]
    for group in groups:
        if group not in GROUPS:
            raise BadInput(f"--by {group!r} is not one of {', '.join(GROUPS)}")
    filters["since"] = filters["since"] or "30d"
    _sums(calls.usage(groups, project=None if project == ALL_PROJECTS else project, **filters), form)


_JOB = "gpus truncated hints.text"
_SUMS = "since until rows truncated hints.text"


def _job(calls: Calls, job: str, project: str | None, form: str) -> None:
    from stoker.cli.output import echo_data, echo_items, values
    from stoker.cli.usage_text import GPUS, hint_lines, job_usage_text

    report = calls.job_usage(job, project)
    if form == "json":
        echo_data(report, form)
    elif form == "csv":
        raise BadInput("-o csv: of sums only; write `stoker usage --by job -o csv`")
    else:
        gpus, truncated, hints = values(report, _JOB)
        click.echo(job_usage_text(report), nl=False)
        if gpus:
            click.echo()
            echo_items(GPUS, gpus)
        if truncated:
            click.echo(f"the first {len(gpus)} GPUs; -o json has as many", err=True)
        click.echo(hint_lines(hints), nl=False)


def _sums(report: Any, form: str) -> None:
    from stoker.cli.output import echo_data, echo_rows, values
    from stoker.cli.usage_text import hint_lines, usage_csv, usage_table

    since, until, rows, truncated, hints = values(report, _SUMS)
    if form == "json":
        echo_data(report, form)
    elif form == "csv":
        click.echo(usage_csv(report), nl=False)
    elif not rows:
        click.echo(f"no GPU was used from {_minute(since)} to {_minute(until)} UTC", err=True)
    else:
        echo_rows(*usage_table(report))
        click.echo(hint_lines(hints), nl=False)
    if truncated:
        click.echo(f"the first {len(rows)} rows; --limit shows more, up to 10000", err=True)


def _minute(at: str) -> str:
    return at[:16].replace("T", " ")
