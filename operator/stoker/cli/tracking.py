"""Staying with one job until it ends: progress, its output, and what its end means as an exit code.

Called by `run` and `follow`.
"""

from __future__ import annotations

import sys

import click

from stoker.client.client import Client
from stoker.client.code.sizes import files_text, size_text
from stoker.client.errors import EXIT_DETACHED, EXIT_REFUSED, ApiError, StokerError
from stoker.client.log_lines import LogChunk
from stoker.client.updates import JobChanged, JobEnded
from stoker.spec.job import ENDED, AttemptEnd, Phase, TrainingJob
from stoker.spec.outcome import Category

from .board import open_board
from .feed import Feed
from .output import for_terminal

MOST_LOGS = 8
LOG_SILENCE_S = 10.0


def track(client: Client, job: TrainingJob, *, tail: int | None = None) -> int:
    """Follow `job` to its end; the exit code to leave with.

    A command's output goes to standard output as it comes and Stoker's own lines to standard error; a recipe's progress
    goes to standard output. Ctrl-C leaves the job running.
    """
    name = job.metadata.name
    prints = job.spec.trainer.command is not None
    logged: set[int] = set()
    ended = False
    last = job
    try:
        with Feed(client) as feed, open_board(sys.stderr if prints else None) as board:
            feed.follow_events(name)
            while feed.open:
                item = feed.get(LOG_SILENCE_S if ended else None)
                if item is None:
                    break  # the job has ended and its log says nothing more
                if item.error is not None and not (item.log and _no_log(item.error)):
                    raise item.error
                match item.what:
                    case LogChunk() as chunk:
                        _print_log(chunk, many=job.spec.most_workers > 1)
                    case JobChanged(job=last):
                        if not (prints and last.status.phase in ENDED):  # of a command the last word is enough
                            board.update(last)
                        if prints and _has_run(last) and (last.status.placement or not logged):
                            for worker in range(len(logged), min(last.workers, MOST_LOGS)):
                                feed.follow_logs(name, worker, tail=tail)
                                logged.add(worker)
                    case JobEnded():
                        ended = True
    except KeyboardInterrupt:
        click.echo(
            f"\ndetached; {name} goes on. Follow again: stoker follow {name} · cancel: stoker cancel {name}", err=True
        )
        return EXIT_DETACHED
    if last.status.phase not in ENDED:
        last = client.get(name)
    _say_end(last)
    _say_output(client, last)
    return exit_code(last)


def exit_code(job: TrainingJob) -> int:
    """The job's: 0 succeeded, the command's own code if it failed by itself, 130 cancelled, else 1."""
    status = job.status
    if status.phase is Phase.SUCCEEDED:
        return 0
    if status.phase is Phase.CANCELLED:
        return EXIT_DETACHED
    end = _last_end(job)
    own = {Category.USER_ERROR}
    if job.spec.trainer.recipe is None:
        own.add(Category.OUT_OF_MEMORY)
    if end is not None and end.category in own:
        for worker in end.workers:
            if worker.category in own and worker.exit_code:
                return worker.exit_code
    return EXIT_REFUSED


def _has_run(job: TrainingJob) -> bool:
    """There is a log to read, or was."""
    status = job.status
    if status.phase is Phase.STARTING:
        return False
    return status.attempt > 0 and (status.phase in (Phase.RUNNING, Phase.STOPPING) or bool(status.attempts))


def _no_log(error: StokerError) -> bool:
    return isinstance(error, ApiError) and error.status == 404


def _last_end(job: TrainingJob) -> AttemptEnd | None:
    return max(job.status.attempts, key=lambda end: end.number, default=None)


def _print_log(chunk: LogChunk, *, many: bool) -> None:
    text = for_terminal(chunk.text) if sys.stdout.isatty() else chunk.text
    if many:
        text = "".join(f"[{chunk.worker}] {line}\n" for line in text.removesuffix("\n").split("\n"))
    sys.stdout.write(text)
    sys.stdout.flush()


def _say_output(client: Client, job: TrainingJob) -> None:
    """Where the results are. Counted only where that starts nothing: on a cluster a pod would have to read them."""
    name, place = job.metadata.name, job.status.output
    if not place:
        return
    found = ""
    if place.startswith("/"):
        try:
            listed = client.files(name, project=job.metadata.namespace)
        except StokerError:
            return  # the end was said; this is an extra
        sizes = [one.size for one in listed.items if one.kind == "file"]
        if not sizes:
            return
        found = f"{files_text(len(sizes))}{' and more' if listed.truncated else ''}, {size_text(sum(sizes))} in "
    click.echo(f"output: {found}{place} · copy: stoker cp {name}: FOLDER · list: stoker files {name}", err=True)


def _say_end(job: TrainingJob) -> None:
    name, status = job.metadata.name, job.status
    says = " ".join((status.message or status.reason).split())
    click.echo(f"{name} {status.phase}: {says}", err=True)
    saved = status.progress.checkpoint if status.progress else None
    if saved and saved.path:
        click.echo(f"checkpoint of step {saved.step}: {saved.path}", err=True)
    if status.phase is Phase.FAILED:
        output = "" if job.spec.trainer.command else f" · output: stoker logs {name}"
        click.echo(f"why: stoker why {name}{output} · again: stoker retry {name}", err=True)
