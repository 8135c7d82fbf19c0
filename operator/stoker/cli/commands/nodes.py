"""`stoker node ls | cordon | uncordon`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .common import Group, connected_cluster_wide, output_option
from .names import complete_of

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.group(cls=Group)
def node() -> None:
    """Nodes and their GPUs: what is used, what is wrong, what is closed."""


_node_argument = click.argument("name", metavar="NODE", shell_complete=complete_of("nodes"))


@node.command("ls", short_help="List nodes: what is used of them, and what is wrong with their GPUs.")
@output_option("table", "json", "yaml", "name")
@connected_cluster_wide
def ls(calls: Calls, form: str) -> None:
    """List nodes: what is used of them, and what is wrong with their GPUs. `stoker get node NODE` shows one."""
    from stoker.cli.object_tables import NODES
    from stoker.cli.output import echo_objects

    echo_objects(NODES, calls.items("nodes"), form)


@node.command("cordon", short_help="Close a node, or one of its GPUs, to new jobs.")
@_node_argument
@click.option("--gpu", default="", metavar="UUID|NUMBER", help="Only this GPU. [default: the whole node]")
@click.option("--reason", default="", help="Why, for people.")
@connected_cluster_wide
def cordon(calls: Calls, name: str, gpu: str, reason: str) -> None:
    """Close NODE, or one of its GPUs, to new jobs of Stoker's. Running ones go on.

    On a cluster the device plug-in picks the GPUs of a job, so there a GPU takes its node along.
    """
    calls.cordon(name, gpu, reason)
    click.echo(f"{_named(name, gpu)} takes no new jobs; `stoker node uncordon {name}{_option(gpu)}` opens it again")


@node.command("uncordon", short_help="Open a node again; or a GPU, whatever was wrong with it.")
@_node_argument
@click.option("--gpu", default="", metavar="UUID|NUMBER", help="This GPU is healthy again. [default: the whole node]")
@connected_cluster_wide
def uncordon(calls: Calls, name: str, gpu: str) -> None:
    """Open NODE to new jobs again. With --gpu that GPU counts as well, whatever was wrong with it until now
    (docs/gpu-health.md); what happens afterwards counts."""
    calls.uncordon(name, gpu)
    click.echo(f"{_named(name, gpu)} takes new jobs again")


def _named(name: str, gpu: str) -> str:
    return f"GPU {gpu} of node {name}" if gpu else f"node {name}"


def _option(gpu: str) -> str:
    return f" --gpu {gpu}" if gpu else ""
