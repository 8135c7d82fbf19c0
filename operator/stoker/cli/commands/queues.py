"""`stoker queue ls | set | rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .common import Group, connected_cluster_wide, output_option, show_warning
from .names import complete_of

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.group(cls=Group)
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


_PLACES = {
    "parent": ("parent",),
    "gpus": ("limit", "gpus"),
    "cpu": ("limit", "cpu"),
    "memory": ("limit", "memory"),
    "limit": ("limit",),
    "guarantee": ("guarantee",),
    "weight": ("weight",),
    "project": ("projects",),
    "highest-priority": ("highestPriority",),
    "reservation-budget": ("reservationBudget",),
    "preempt": ("preemption", "withinQueue"),
    "min-runtime": ("preemption", "minRuntime"),
    "discipline": ("discipline",),
    "ttl": ("ttlAfterFinished",),
    "default-per-gpu": ("defaults", "perGpu"),
    "default-without-gpus": ("defaults", "withoutGpus"),
}
"""Option → where its value stands in the spec."""
_SIZES = ("default-per-gpu", "default-without-gpus")
_AMOUNTS = ("limit", "guarantee", *_SIZES)


@queue.command("set", short_help="Create a queue, or change what is given of it.")
@click.argument("name", shell_complete=complete_of("queues"))
@click.option("--parent", help="The queue above: jobs of this one count in it too.")
@click.option("--gpus", type=click.IntRange(0), help="Most GPUs its running jobs may hold together.")
@click.option("--cpu", metavar="CORES", help="Most cores, for example 64.")
@click.option("--memory", metavar="QUANTITY", help="Most memory, for example 512Gi.")
@click.option(
    "--limit",
    metavar="RESOURCE=AMOUNT",
    multiple=True,
    help="The same, for GPUs of a type too, for example h100=8. Repeatable.",
)
@click.option(
    "--guarantee",
    metavar="RESOURCE=AMOUNT",
    multiple=True,
    help="gpus, cpu, memory or GPUs of a type (h100=16) that are its own: while it holds less, its jobs go first. "
    "Repeatable.",
)
@click.option("--weight", type=click.IntRange(1), help="Its part beside other queues. [default: 1]")
@click.option("--project", multiple=True, help="A project that may submit here. Repeatable. [default: all]")
@click.option("--highest-priority", type=int, help="The highest priority a job may ask for here.")
@click.option(
    "--reservation-budget",
    type=click.FloatRange(0, 100),
    help="How much idling it is worth to keep nodes for a job that waits long: GPU-hours per own GPU-hour of waiting. "
    "0: none are kept. [default: 0.05; las: 0.02]",
)
@click.option(
    "--preempt",
    type=click.Choice(["Never", "LowerPriority"]),
    help="Which of its running jobs are stopped, after saving, for a waiting one of it. [default: Never]",
)
@click.option("--min-runtime", metavar="DURATION", help="None of its jobs is stopped for another before that.")
@click.option(
    "--discipline",
    type=click.Choice(["fifo", "las"]),
    help="Which jobs of one priority go first: those that have waited longer, or those that have had the fewest "
    "GPU-hours (las; running jobs that have had many more are stopped for them, after saving). [default: fifo]",
)
@click.option("--ttl", metavar="DURATION", help="Delete its jobs this long after their end, where they name no time.")
@click.option(
    "--default-per-gpu",
    metavar="RESOURCE=AMOUNT",
    multiple=True,
    help="cpu or memory that a worker gets for each of its GPUs if its job does not say it, for example memory=64Gi. "
    "Repeatable. [default: the GPU's share of a node]",
)
@click.option(
    "--default-without-gpus",
    metavar="RESOURCE=AMOUNT",
    multiple=True,
    help="The same of a worker without GPUs. Repeatable. [default: cpu=1, memory=1Gi]",
)
@click.option(
    "--unset",
    type=click.Choice(list(_PLACES)),
    metavar="OPTION",
    multiple=True,
    help=f"Remove what this option sets: {', '.join(_PLACES)}. Repeatable. Done first: --unset guarantee --guarantee "
    "gpus=8 leaves that alone.",
)
@output_option("table", "json", "yaml")
@connected_cluster_wide
def set_(calls: Calls, name: str, form: str, unset: tuple[str, ...], **given: Any) -> None:
    """Create the queue NAME, or change what is given; the rest stays as it is."""
    from stoker.cli.object_tables import QUEUES
    from stoker.cli.output import echo_objects

    values = {option.replace("_", "-"): value for option, value in given.items() if value not in (None, ())}
    both = sorted(set(unset).intersection(values).difference(_AMOUNTS))  # of amounts: these instead of all others
    if both:
        raise click.UsageError(f"--{both[0]} is given a value and unset; choose one")

    amounts = {option: [_amount(option, text) for text in values.get(option, ())] for option in _AMOUNTS}

    def change(spec: dict[str, Any]) -> None:
        for option in unset:  # first: `--unset limit --gpus 8` leaves a limit of 8 GPUs alone
            _remove(spec, _PLACES[option])
        for option, path in _PLACES.items():
            for where, amount in amounts.get(option, ()):
                _put(spec, (*path, *where), amount)
            if option in values and option not in _AMOUNTS:
                _put(spec, path, list(values[option]) if option == "project" else values[option])

    calls.on_warning = show_warning
    echo_objects(QUEUES[:-1], [calls.change("queues", name, change)], form, one=True)  # its message is of before


@queue.command("rm", short_help="Remove queues; one in use goes with its last job.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_of("queues"))
@connected_cluster_wide
def rm(calls: Calls, names: tuple[str, ...]) -> None:
    """Remove queues. One that jobs still use takes no new ones, and goes with the last of them."""
    for name in names:
        click.echo(calls.delete("queues", name) or f"queue {name} removed")


def _amount(option: str, text: str) -> tuple[tuple[str, ...], int | str]:
    """Where in the resources it stands, and how much it is."""
    resource, _, amount = text.partition("=")
    if resource in ("cpu", "memory") and amount:
        return (resource,), amount
    if option in _SIZES:
        raise click.UsageError(f"--{option} {text}: write cpu=8 or memory=64Gi")
    if not resource or not amount.isdecimal():
        raise click.UsageError(f"--{option} {text}: write gpus=8, h100=8, cpu=64 or memory=512Gi")
    return ("gpus",) if resource == "gpus" else ("gpuTypes", resource), int(amount)


def _put(spec: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        spec = spec.setdefault(key, {})
    spec[path[-1]] = value


def _remove(spec: dict[str, Any], path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        spec = spec.get(key, {})
    spec.pop(path[-1], None)
