"""`stoker logs | events`: what a worker printed, what happened to a job."""

from __future__ import annotations

import codecs
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from .common import connected, job_argument, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on to the job's end, over retries and server restarts.")
@click.option("-w", "--worker", type=click.IntRange(0), default=0, show_default=True, help="Which worker.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt. [default: the newest]")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Only the last lines.")
@connected
def logs(calls: Calls, job: str, follow: bool, worker: int, attempt: int | None, tail: int | None) -> None:
    """Print the log of one of JOB's workers: to the byte in a pipe; on a terminal without colours and other escapes."""
    from stoker.cli.output import for_terminal
    from stoker.client.calls import log_params

    terminal = sys.stdout.isatty()
    if not follow:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for data in calls.log_bytes(job, log_params(worker, attempt, tail)):
            sys.stdout.buffer.write(for_terminal(decoder.decode(data)).encode() if terminal else data)
        sys.stdout.buffer.flush()
        return
    from stoker.client.client import Client

    at = attempt
    with Client(calls=calls).logs(job, worker=worker, attempt=attempt, tail=tail) as chunks:
        for chunk in chunks:
            if at is not None and chunk.attempt != at:
                click.echo(f"--- attempt {chunk.attempt} ---", err=True)
            at = chunk.attempt
            sys.stdout.write(for_terminal(chunk.text) if terminal else chunk.text)
            sys.stdout.flush()


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on to the job's end.")
@output_option("text", "json")
@connected
def events(calls: Calls, job: str, follow: bool, form: str) -> None:
    """Print the events of JOB, oldest first; with `-o json` one object a line."""
    from stoker.cli.job_text import EVENT

    def show(event: Any) -> None:
        click.echo(
            json.dumps(event, ensure_ascii=False, separators=(",", ":")) if form == "json" else EVENT.read(event)
        )

    if not follow:
        for event in calls.events(job):
            show(event)
        return
    from stoker.client.client import Client
    from stoker.client.updates import EventSeen, JobEnded

    with Client(calls=calls).events(job) as updates:
        for update in updates:
            if isinstance(update, EventSeen):
                show(update.event.dump())
            elif isinstance(update, JobEnded):
                click.echo(f"{job} {update.end.phase}: {update.end.message or update.end.reason}", err=True)
