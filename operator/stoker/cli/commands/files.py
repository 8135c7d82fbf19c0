"""`stoker files | cp`: what a job has left in its output folder, listed and fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.client.errors import BadInput

from .common import connected, for_job, job_argument, output_option
from .names import complete_jobs

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.command()
@job_argument
@click.argument("folder", required=False, default="")
@output_option("table", "json", "yaml", "name")
@connected
def files(calls: Calls, job: str, folder: str, form: str) -> None:
    """List what JOB has left in its output folder, or below FOLDER there; what it wrote beside its code is below
    beside-code."""
    from stoker.cli.output import Column, age_text, echo_data, echo_items, harmless
    from stoker.client.code.sizes import size_text

    listed = calls.files(job, folder)
    if form == "name":
        for item in listed["items"]:
            click.echo(harmless(item["path"]))
    elif form != "table":
        echo_data(listed, form)
    elif not listed["items"]:
        click.echo(f"{job} has left no files in its output folder", err=True)
    else:
        columns = (
            Column("PATH", "path"),
            Column("SIZE", "kind size", lambda kind, size: size_text(size) if kind == "file" else kind, right=True),
            Column("AGE", "modifiedAt", age_text, right=True),
        )
        echo_items(columns, listed["items"])
    if listed["truncated"]:
        click.echo(f"there are more; name a folder: stoker files {job} FOLDER", err=True)


@click.command()
@click.argument("source", metavar="JOB:PATH", shell_complete=complete_jobs)
@click.argument("to", metavar="[TO]", default=".")
@connected
def cp(calls: Calls, source: str, to: str) -> None:
    """Copy a file or folder of a job's output to this machine: stoker cp JOB:model.pt .

    JOB: alone means everything. A file that is here already is replaced once all of the new one has come; symbolic
    links are left out.
    """
    from stoker.cli.output import harmless
    from stoker.client.code.sizes import files_text, size_text
    from stoker.client.copying import copy, look

    job, colon, path = source.partition(":")
    if not colon or not job or "/" in job:
        raise BadInput(f"{source}: write JOB:PATH, for example JOB:model.pt; files are copied from a job only")

    def shown(path: str, place: Path) -> None:
        if sys.stderr.isatty():
            click.echo(f"{harmless(path)} -> {place}", err=True)

    listed = for_job(calls, job, lambda name: look(calls, name, path))
    try:
        copied = copy(calls, listed, to, on_file=shown)
    except OSError as error:
        raise BadInput(f"{error.filename or to}: {error.strerror or error}") from None
    if copied.links:
        click.echo(f"left out: {copied.links} symbolic link{'s' if copied.links > 1 else ''}", err=True)
    if not copied.files:
        raise BadInput(f"{listed.job} has no files there; `stoker files {listed.job}` lists them")
    click.echo(f"{files_text(copied.files)}, {size_text(copied.size_bytes)}", err=True)
