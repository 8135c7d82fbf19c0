"""`stoker files | cp`: what a job has left in its output folder, listed and fetched."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stoker.client.errors import ApiError, BadInput, StokerError

from .common import connected, for_job, job_argument, output_option
from .names import complete_jobs

if TYPE_CHECKING:
    from stoker.client.calls import Calls

_MOST_COMPONENT_BYTES = 255


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
    from stoker.client.fetching import fetch_into

    job, colon, path = source.partition(":")
    path = path.strip("/")
    if not colon or not job or "/" in job:
        raise BadInput(f"{source}: write JOB:PATH, for example JOB:model.pt; files are copied from a job only")
    if {".", ".."} & set(path.split("/")):
        raise BadInput(f"{source}: the path is one within the output folder, without `.` and `..`")
    copied = bytes_copied = 0
    job, listed = for_job(calls, job, lambda name: (name, _listed(calls, name, path)))
    for one in _wanted(job, path, listed, to):
        one.to.parent.mkdir(parents=True, exist_ok=True)
        try:
            bytes_copied += fetch_into(one.to, partial(calls.fetch_file, job, one.path))
        except OSError as error:
            raise BadInput(f"{one.to}: {error.strerror or error}") from None
        copied += 1
        if sys.stderr.isatty():
            click.echo(f"{harmless(one.path)} -> {one.to}", err=True)
    if not copied:
        raise BadInput(f"{job} has no files there; `stoker files {job}` lists them")
    click.echo(f"{files_text(copied)}, {size_text(bytes_copied)}", err=True)


class _Wanted(NamedTuple):
    path: str
    to: Path


def _listed(calls: Calls, job: str, path: str) -> Any:
    """What is below `path`; None: that is no folder."""
    try:
        return calls.files(job, path)
    except ApiError as error:
        if error.code != "NoFile" or not path:
            raise
        return None


def _wanted(job: str, path: str, listed: Any, given: str) -> Iterator[_Wanted]:
    """The files that `path` names, each with its place here. `listed`: of `_listed`."""
    last = path.rpartition("/")[2]
    to = Path(given)
    into = to.is_dir() or given.endswith("/")
    if listed is None:
        yield _Wanted(path, to / _own(last) if into else to)  # no folder, so a file
        return
    if listed["truncated"]:
        raise BadInput(f"{job}:{path} holds too many files for one copy; name folders within it")
    base = to / _own(last) if last and into else to
    skipped = 0
    for item in listed["items"]:
        below = item["path"].removeprefix(listed["folder"]).lstrip("/")
        if item["kind"] == "file":
            yield _Wanted(item["path"], base.joinpath(*map(_own, below.split("/"))))
        else:
            skipped += 1
    if skipped:
        click.echo(f"left out: {skipped} symbolic link{'s' if skipped > 1 else ''}", err=True)


def _own(name: str) -> str:
    """A part of a path as the server gave it, which is anybody's. Raises: StokerError for what could lead elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(os.fsencode(name)) > _MOST_COMPONENT_BYTES:
        raise StokerError(f"a file's name can't be one here: {name!r}")
    return name
