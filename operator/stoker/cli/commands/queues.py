"""`stoker queue ls | set | rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .common import connected_cluster_wide, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.group()
def queue() -> None:
    """Queues: who may use how much at a time."""


@queue.command("ls", short_help="List queues: what is used of what they may use.")
@output_option("table", "json", "yaml")
@connected_cluster_wide
def ls(calls: Calls, form: str) -> None:
    """List queues: what is used of what they may use."""
    from stoker.cli.object_tables import QUEUES
    from stoker.cli.output import echo_objects

    echo_objects(QUEUES, calls.items("queues"), form)


@queue.command("set", short_help="Create a queue, or replace its limits.")
@click.argument("name")
@click.option("--gpus", type=click.IntRange(0), help="Most GPUs its running jobs may hold together.")
@click.option("--cpu", metavar="CORES", help="Most cores, for example 64.")
@click.option("--memory", metavar="QUANTITY", help="Most memory, for example 512Gi.")
@click.option("--project", "allowed", multiple=True, help="A project that may submit here. Repeatable. [default: all]")
@click.option("--highest-priority", type=int, help="The highest priority a job may ask for here.")
@click.option(
    "--reservation-budget",
    type=click.FloatRange(0, 100),
    help="How much idling it is worth to keep nodes for a job that waits long: GPU-hours per own GPU-hour of waiting. "
    "0: none are kept. [default: 0.25]",
)
@click.option("--ttl", metavar="DURATION", help="Delete its jobs this long after their end, where they name no time.")
@output_option("table", "json", "yaml")
@connected_cluster_wide
def set_(
    calls: Calls, name: str, form: str, gpus: int | None, cpu: str | None, memory: str | None, **given: Any
) -> None:
    """Create the queue NAME, or replace its limits: what is not given is not limited."""
    from stoker.cli.object_tables import QUEUES
    from stoker.cli.output import echo_objects

    spec = {
        "limit": _given(gpus=gpus, cpu=cpu, memory=memory),
        **_given(
            projects=list(given["allowed"]) or None,
            highestPriority=given["highest_priority"],
            reservationBudget=given["reservation_budget"],
            ttlAfterFinished=given["ttl"],
        ),
    }
    echo_objects(QUEUES, [calls.put("queues", name, spec)], form, one=True)


@queue.command("rm", short_help="Remove queues; one in use goes with its last job.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connected_cluster_wide
def rm(calls: Calls, names: tuple[str, ...]) -> None:
    """Remove queues. One that jobs still use takes no new ones, and goes with the last of them."""
    for name in names:
        click.echo(calls.delete("queues", name) or f"queue {name} removed")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
