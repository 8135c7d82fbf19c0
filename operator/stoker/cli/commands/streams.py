"""`stoker logs | events`: what a worker printed, what happened to a job."""

from __future__ import annotations

import codecs
import heapq
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from stoker.client.errors import ApiError, BadInput, StokerError

from .common import connected, job_argument, output_option

if TYPE_CHECKING:
    from stoker.client.calls import Calls
    from stoker.client.log_lines import LogChunk

MOST_AT_ONCE = 64


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on to the job's end, over retries and server restarts.")
@click.option("-w", "--worker", type=click.IntRange(0), help="Which worker. [default: 0]")
@click.option("-a", "--all-workers", "everyone", is_flag=True, help="All workers, each line with its [worker].")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt. [default: the newest]")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="LINES", help="Only the last lines (of each worker).")
@click.option("--since", metavar="WHEN", help="Only what was written since: 10m, 2h, a date or a time (UTC).")
@click.option("-t", "--timestamps", is_flag=True, help="Before each line when it was written (UTC).")
@connected
def logs(calls: Calls, job: str, follow: bool, worker: int | None, everyone: bool, **asked: Any) -> None:
    """Print the log of one of JOB's workers: to the byte in a pipe; on a terminal without colours and other escapes.

    Of all workers line by line, in the order of the times at which they were written.
    """
    from stoker.cli.output import for_terminal
    from stoker.client.calls import log_params

    terminal = sys.stdout.isatty()
    if everyone:
        if worker is not None:
            raise BadInput("--worker and --all-workers: choose one")
        _all_workers(calls, job, asked, follow=follow)
    elif follow:
        with calls.logs(job, worker=worker or 0, **asked) as chunks:
            at = asked["attempt"]
            for chunk in chunks:
                if at is not None and chunk.attempt != at:
                    click.echo(f"--- attempt {chunk.attempt} ---", err=True)
                at = chunk.attempt
                _print(chunk, stamped=asked["timestamps"])
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for data in calls.log_bytes(job, log_params(worker or 0, **asked)):
            sys.stdout.buffer.write(for_terminal(decoder.decode(data)).encode() if terminal else data)
        sys.stdout.buffer.flush()


def _all_workers(calls: Calls, job: str, asked: Mapping[str, Any], *, follow: bool) -> None:
    """Raises: BadInput (too many), ApiError (none has a log)."""
    from stoker.cli.output import values

    workers, most = values(calls.job(job), "spec.workers spec.elastic.max")
    count = max(workers or 1, most or 0)
    if count > MOST_AT_ONCE:
        raise BadInput(f"the job has {count} workers, and {MOST_AT_ONCE} logs are the most at once; name one by -w")
    timed = {**asked, "timestamps": True}
    streams = [calls.logs(job, worker=worker, follow=follow, **timed) for worker in range(count)]
    if follow:
        from stoker.cli.feed import Feed

        with Feed() as feed:
            for stream in streams:
                feed.follow(job, stream)
            while feed.open:
                item = feed.get()
                if item is not None and item.error is not None and not _no_log(item.error):
                    raise item.error
                if item is not None and item.what is not None:
                    _print(cast("LogChunk", item.what), stamped=asked["timestamps"], named=True)
        return
    missing: list[ApiError] = []
    for chunk in heapq.merge(*(_there(stream, missing) for stream in streams), key=lambda chunk: chunk.at or ""):
        _print(chunk, stamped=asked["timestamps"], named=True)
    if len(missing) == count:
        raise missing[0]


def _there(stream: Iterable[LogChunk], missing: list[ApiError]) -> Iterator[LogChunk]:
    """The log's parts; an elastic job's worker that never ran has none."""
    try:
        yield from stream
    except ApiError as error:
        if not _no_log(error):
            raise
        missing.append(error)


def _no_log(error: StokerError) -> bool:
    return isinstance(error, ApiError) and error.status == 404


def _print(chunk: LogChunk, *, stamped: bool, named: bool = False) -> None:
    from stoker.cli.output import for_terminal

    text = for_terminal(chunk.text) if sys.stdout.isatty() else chunk.text
    before = (f"{chunk.at or '-'} " if stamped else "") + (f"[{chunk.worker}] " if named else "")
    if before:
        text = "".join(f"{before}{line}\n" for line in text.removesuffix("\n").split("\n"))
    sys.stdout.write(text)
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
