"""`stoker clone | set`: a job once more, with changes; and what of a job that exists may be changed."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import click

from stoker.client.errors import BadInput

from .common import connected, job_argument, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.command()
@job_argument
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a field: spec.priority=5.")
@click.option("-n", "--name", help="The new job's name. [default: made from JOB's]")
@click.option("--from-checkpoint", is_flag=True, help="Go on from JOB's newest checkpoint; JOB must have ended.")
@click.option("--dry-run", is_flag=True, help="Check everything, store nothing; with -o show the whole job.")
@output_option("name", "json", "yaml")
@connected
def clone(
    calls: Calls,
    job: str,
    overrides: tuple[str, ...],
    name: str | None,
    from_checkpoint: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Submit JOB once more, with the same code, and print the new job's name.

    \b
    stoker clone digits --set spec.trainer.config.optimizer.learningRate=0.01
    stoker clone digits --from-checkpoint --set spec.trainer.config.epochs=60
    """
    from stoker.cli.job_text import NAME
    from stoker.cli.manifest import override
    from stoker.cli.output import echo_data

    old = calls.job(job)
    body: dict[str, Any] = {"spec": deepcopy(old["spec"]), "metadata": {"labels": {}}}
    for assignment in overrides:
        override(body, assignment)
    patch = {field: value for field, value in body["spec"].items() if value != old["spec"].get(field)}
    metadata = body["metadata"] | ({"name": name} if name else {})
    asked = {"metadata": metadata, "spec": patch, "fromCheckpoint": from_checkpoint}
    made = calls.clone(job, asked, dry_run=dry_run)
    if form == "name":
        click.echo(f"{NAME.read(made)} (dry run: it would be accepted)" if dry_run else NAME.read(made))
    else:
        echo_data(made, form)


@click.command("set")
@job_argument
@click.option("--priority", type=int, help="Higher goes first within the queue.")
@connected
def set_(calls: Calls, job: str, priority: int | None) -> None:
    """Change JOB: its priority. What else differs is another job (`stoker clone`)."""
    if priority is None:
        raise BadInput("nothing to change: give --priority")
    changed = calls.patch_job(job, {"spec": {"priority": priority}})
    click.echo(f"{changed['metadata']['name']}: priority {changed['spec']['priority']}")
