"""`stoker queue ls | set | rm`."""

from __future__ import annotations

from typing import Any

import click

from stoker.client.calls import Calls

from .common import connected_cluster_wide, output_option


@click.group(short_help="List, set and remove queues.")
def queue() -> None:
    """Queues: who may use how much at a time."""


@queue.command("ls", short_help="List queues: what is used of what they may use.")
@output_option("table", "json", "yaml")
@connected_cluster_wide
def ls(calls: Calls, form: str) -> None:
    """List queues: what is used of what they may use."""
    from stoker.cli.object_tables import QUEUES
    from stoker.cli.output import echo_data, echo_items

    queues = calls.items("queues")
    if form == "table":
        echo_items(QUEUES, queues)
    else:
        echo_data(queues, form)


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
    calls: Calls,
    name: str,
    gpus: int | None,
    cpu: str | None,
    memory: str | None,
    allowed: tuple[str, ...],
    highest_priority: int | None,
    reservation_budget: float | None,
    ttl: str | None,
    form: str,
) -> None:
    """Create the queue NAME, or replace its limits: what is not given is not limited."""
    from stoker.cli.object_tables import QUEUES
    from stoker.cli.output import echo_data, echo_items

    limit: dict[str, Any] = {"gpus": gpus, "cpu": cpu, "memory": memory}
    spec: dict[str, Any] = {"limit": {key: value for key, value in limit.items() if value is not None}}
    if allowed:
        spec["projects"] = list(allowed)
    if highest_priority is not None:
        spec["highestPriority"] = highest_priority
    if reservation_budget is not None:
        spec["reservationBudget"] = reservation_budget
    if ttl is not None:
        spec["ttlAfterFinished"] = ttl
    made = calls.put("queues", name, spec)
    if form == "table":
        echo_items(QUEUES, [made])
    else:
        echo_data(made, form)


@queue.command("rm", short_help="Remove queues; one in use goes with its last job.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connected_cluster_wide
def rm(calls: Calls, names: tuple[str, ...]) -> None:
    """Remove queues. One that jobs still use takes no new ones, and goes with the last of them."""
    for name in names:
        click.echo(calls.delete("queues", name) or f"queue {name} removed")
