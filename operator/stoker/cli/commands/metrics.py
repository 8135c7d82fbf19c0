"""`stoker metrics`: what a job has reported of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stoker.client.errors import BadInput

from .common import connected, output_option
from .names import complete_jobs

if TYPE_CHECKING:
    from stoker.client.calls import Calls

_POINTS = {"table": 20, "curves": 200}
_REPORT = "curves leftOut note"
_MOST = 2000


@click.command()
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.option("--metric", metavar="NAME", help="The points of this one; without it, a line for each metric.")
@click.option("--attempt", type=click.IntRange(0), help="Of this attempt only.")
@click.option("--since", metavar="WHEN", help="A duration before now, a date or a time (UTC).")
@click.option("--until", metavar="WHEN", help="As --since.")
@click.option(
    "--points",
    type=click.IntRange(2, _MOST),
    help="At most so many of each metric; peaks stay. [default: 20; of csv and json all that are kept]",
)
@output_option("table", "csv", "json")
@connected
def metrics(calls: Calls, job: str, metric: str | None, points: int | None, form: str, **wanted: Any) -> None:
    """Show what JOB has reported over its steps (loss, accuracy, your own metrics), also after its deletion.

    Recipes report by themselves, a command by $STOKER_PROGRESS_FILE; docs/curves.md says how, and what is kept.
    """
    from stoker.cli.curve_text import CURVES, POINTS, curves_csv, point_rows
    from stoker.cli.output import echo_data, echo_items, echo_rows, values

    if points is None and form == "table":
        points = _POINTS["curves" if metric is None else "table"]
    report = calls.job_metrics(job, metric=metric, points=points, **wanted)
    curves, left_out, note = values(report, _REPORT)
    if metric is not None and not curves:
        raise BadInput(_no_metric(calls, job, metric, wanted))
    if form == "json":
        echo_data(report, form)
    elif form == "csv":
        click.echo(curves_csv(curves), nl=False)
    elif not curves:
        click.echo(note or "nothing was reported in this time", err=True)
    elif metric is None:
        echo_items(CURVES, curves)
    else:
        echo_rows(POINTS, point_rows(curves))
    if left_out:
        click.echo("the job reports more metrics than the 64 that are kept", err=True)


def _no_metric(calls: Calls, job: str, metric: str, wanted: dict[str, Any]) -> str:
    from stoker.cli.output import harmless, values

    (names,) = values(calls.job_metrics(job, points=2, **wanted), "curves.metric")
    known = ", ".join(dict.fromkeys(harmless(name) for name in names or ()))
    return f"--metric {metric!r}: nothing was reported; " + (f"there is {known}" if known else "nor anything else")
