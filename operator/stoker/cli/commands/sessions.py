"""`stoker exec | port-forward`: a command in a worker, and a worker's ports here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .common import connected, job_argument

if TYPE_CHECKING:
    from stoker.client.calls import Calls

_worker = click.option("-w", "--worker", type=click.IntRange(0), default=0, show_default=True, help="Which worker.")


def _say(line: str) -> None:
    click.echo(f"stoker: {line}", err=True)


@click.command("exec", context_settings={"ignore_unknown_options": True})
@job_argument
@_worker
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@connected
def exec_(calls: Calls, job: str, worker: int, command: tuple[str, ...]) -> None:
    """Run CMD in a running (or held) worker of JOB, in its environment and folder; without CMD a shell.

    \b
    stoker exec digits-x7k2p                              # a shell, with your terminal
    stoker exec digits-x7k2p -- nvidia-smi
    stoker exec digits-x7k2p -- tar cz out | tar xz       # pipes pass through

    Leaves with the command's exit code. The command ends with this one, and with the worker.
    """
    from stoker.cli.sessions.execute import execute
    from stoker.client.sessions.connection import WorkerTarget

    target = WorkerTarget(calls.endpoint, calls.project, job, worker)
    click.get_current_context().exit(execute(target, command, _say))


@click.command("port-forward")
@job_argument
@click.argument("ports", metavar="[LOCAL:]PORT...", nargs=-1, required=True)
@_worker
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen on this machine.")
@connected
def port_forward(calls: Calls, job: str, ports: tuple[str, ...], worker: int, address: str) -> None:
    """Listen here, and pass connections on to PORT on the loopback of a worker of JOB, until Ctrl-C.

    \b
    stoker port-forward digits-x7k2p 6006                 # http://127.0.0.1:6006 is the worker's TensorBoard
    stoker port-forward digits-x7k2p 8080:80 :5678        # 8080 here is its 80; any free port for its 5678
    """
    from stoker.client.sessions.connection import WorkerTarget
    from stoker.client.sessions.forwarding import Forwarded, forward

    wanted = [Forwarded.parse(port) for port in ports]
    forward(WorkerTarget(calls.endpoint, calls.project, job, worker), wanted, address, _say)
