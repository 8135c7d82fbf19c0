"""`stoker run | submit | follow`: from a file or a command line to a job, and staying with it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.manifest import Manifest, override, read_manifests
from stoker.client.errors import ApiError, BadInput, StokerError
from stoker.client.job_options import apply_options, secret_name

from .common import connected, job_argument, output_option, show_warning
from .names import complete_of

if TYPE_CHECKING:
    from stoker.client.calls import Calls
    from stoker.client.code.sending import Progress

_BAR_FROM_BYTES = 1 << 20
# Everything after the first word that is no option is the user's command, `--` or not.
_STOP_AT_COMMAND = {"allow_interspersed_args": False}


class _Refused(StokerError):
    """A refusal in terms of the user's file."""


def _spec_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED),
            click.option(
                "-f", "--file", "files", multiple=True, metavar="FILE", help="A job file; - is standard input."
            ),
            click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a field of the file."),
            click.option("-n", "--name", help="The job's name. [default: made from the program's]"),
            click.option("-q", "--queue", help="The queue. [default: default]", shell_complete=complete_of("queues")),
            click.option("--priority", type=int, help="Higher goes first within the queue."),
            click.option("--preemptible/--not-preemptible", default=None, help="May it be stopped for others?"),
            click.option("-g", "--gpus", type=click.IntRange(0), help="GPUs per worker."),
            click.option("-w", "--workers", type=click.IntRange(1), help="Workers: all of them run, or none."),
            click.option("--elastic", metavar="MIN:MAX", help="With how many workers it may run, for example 2:8."),
            click.option("--cpu", metavar="CORES", help="Cores per worker."),
            click.option("--memory", metavar="QUANTITY", help="Memory per worker, for example 16Gi."),
            click.option(
                "-e", "--env", "env", multiple=True, metavar="K=V", help="A variable; K alone passes yours on."
            ),
            click.option("--env-file", "env_files", multiple=True, metavar="FILE", help="Variables by lines K=V."),
            click.option(
                "--secret",
                "secrets",
                multiple=True,
                metavar="K[=NAME[/KEY]]",
                help="A variable with a value of `stoker secret set NAME`; K alone: K in lower case, with '-'.",
            ),
            click.option(
                "--data",
                multiple=True,
                metavar="NAME=FROM",
                help="Data for $STOKER_DATA_<NAME>: ./folder, a runtime's name for it, claim:NAME, or a url.",
            ),
            click.option("--code", metavar="FOLDER", help="The folder to ship with the command. [default: this one]"),
            click.option("--no-code", is_flag=True, help="Ship nothing: run the command where it is."),
            click.option(
                "--install",
                is_flag=True,
                help="Install what the folder's uv.lock or requirements.txt lists before the command starts.",
            ),
            click.option("--image", help="The container image to run the command in; on a cluster."),
            click.option(
                "--runtime",
                help="The TrainingRuntime to run in; on a cluster.",
                shell_complete=complete_of("runtimes"),
            ),
            click.option("--ttl", metavar="DURATION", help="Delete the job this long after its end, for example 7d."),
            click.option("--max-duration", metavar="DURATION", help="Stop after running this long, for example 2h."),
            click.option("--hold", metavar="DURATION", help="Keep a failed worker this long, for `stoker exec`."),
            click.option("--idempotency-key", metavar="KEY", help="Submitting twice with one key makes one job."),
        ]
    ):
        function = option(function)
    return function


@click.command(context_settings=_STOP_AT_COMMAND)
@_spec_options
@connected
def run(calls: Calls, **given: Any) -> None:
    """Submit a job, from a file or as a command, and follow it to its end.

    \b
    stoker run -f examples/digits.yaml --set spec.trainer.config.epochs=5
    stoker run --gpus 1 -- python train.py --lr 0.1

    With a command the current folder is shipped, without what .gitignore and .stokerignore leave out; each worker
    starts in a copy of its own (docs/code.md).

    Ctrl-C detaches: the job goes on. Leaves with the job's exit code: 0 if it succeeded, the command's own if that
    failed, 130 if it was cancelled (or you detached), else 1.
    """
    from stoker.cli.job_details import worker_text
    from stoker.cli.tracking import track
    from stoker.client.client import Client
    from stoker.client.remarks import remarks

    manifests = _manifests(given)
    if len(manifests) > 1:
        raise BadInput("run follows one job; `stoker submit` takes several")
    _place(calls, manifests, given)
    client = Client(calls=calls)
    job = _send(client.submit, manifests[0], given, 0)
    click.echo(f"submitted {job.metadata.name}", err=True)
    if (found := job.status.resources) is not None:
        amounts = (found.cpu, found.memory, found.cpu_from, found.memory_from)
        click.echo(f"each worker: {worker_text(job.spec.gpus_per_worker, None, None, *amounts)}", err=True)
    for text in remarks(client, job, gpus_named="gpusPerWorker" in manifests[0].body["spec"]):
        click.echo(f"note: {text}", err=True)
    click.get_current_context().exit(track(client, job))


@click.command(context_settings=_STOP_AT_COMMAND)
@_spec_options
@click.option("--dry-run", is_flag=True, help="Check everything, store nothing; with -o show the whole job.")
@output_option("name", "json", "yaml")
@connected
def submit(calls: Calls, dry_run: bool, form: str, **given: Any) -> None:
    """Submit jobs, from files or as a command, and print their names.

    With a command the current folder is shipped, as `run` does. A dry run checks the folder too, but sends nothing.
    """
    from stoker.cli.job_text import NAME
    from stoker.cli.output import echo_data

    manifests = _manifests(given)
    _place(calls, manifests, given, dry_run=dry_run)
    jobs = []
    for number, manifest in enumerate(manifests):
        job = _send(calls.submit, manifest, given, number, dry_run=dry_run)
        jobs.append(job)
        if form == "name":
            click.echo(f"{NAME.read(job)} (dry run: it would be accepted)" if dry_run else NAME.read(job))
    if form != "name":
        echo_data(jobs[0] if len(jobs) == 1 else jobs, form)


@click.command()
@job_argument
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Start with the last lines of a command's log.")
@connected
def follow(calls: Calls, job: str, tail: int | None) -> None:
    """Follow JOB to its end, as `run` does, and leave with its exit code. Ctrl-C detaches."""
    from stoker.cli.tracking import track
    from stoker.client.client import Client

    client = Client(calls=calls)
    click.get_current_context().exit(track(client, client.get(job), tail=tail))


def _manifests(given: dict[str, Any]) -> list[Manifest]:
    """What to submit, options and overrides carried out."""
    files, command = given["files"], given["command"]
    if bool(files) == bool(command):
        raise BadInput("give either -f FILE or a command: stoker run [OPTIONS] -- python train.py")
    if command:
        if len(command) == 1 and command[0].endswith((".yaml", ".yml")):
            raise BadInput(f"to submit a job file: -f {command[0]}")
        manifests = [Manifest("the command line", {"spec": {"trainer": {"command": list(command)}}})]
    else:
        manifests = [manifest for path in files for manifest in read_manifests(path)]
    for manifest in manifests:
        _apply(manifest.body, given)
    return manifests


def _place(calls: Calls, manifests: list[Manifest], given: dict[str, Any], *, dry_run: bool = False) -> None:
    from stoker.client.code.placing import place_commands

    calls.on_warning = show_warning
    place_commands(
        calls,
        [manifest.body["spec"] for manifest in manifests],
        folder=given["code"],
        no_code=given["no_code"],
        install=given["install"],
        dry_run=dry_run,
        say=lambda text: click.echo(text, err=True),
        bar=_sending_bar,
    )


@contextlib.contextmanager
def _sending_bar(size: int) -> Iterator[Progress | None]:
    """A bar on standard error, for a folder that takes a while and for people who watch."""
    if size < _BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = ("sending code", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _apply(body: dict[str, Any], given: dict[str, Any]) -> None:
    if isinstance(body["spec"], dict):
        own = {
            "env": _environment(given),
            "secrets": dict(map(_secret, given["secrets"])),
            "data": dict(map(_data, given["data"])),
        }
        apply_options(body["spec"], given | own)
    if given["name"]:
        from stoker.client.calls import named

        body["metadata"] = named(body.get("metadata"), given["name"])
    for assignment in given["overrides"]:
        override(body, assignment)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise BadInput(f"--env {name}: it is not set here; write {name}=VALUE")
    return name, os.environ[name]


def _environment(given: dict[str, Any]) -> dict[str, str]:
    """Of files, then of options; with a warning of what looks like a key, for all who may read the job can read it."""
    from stoker.client.variables import looks_secret, read_env_file

    found = {name: value for path in given["env_files"] for name, value in read_env_file(path).items()}
    found |= dict(map(_variable, given["env"]))
    for name, value in found.items():
        if looks_secret(name, value):
            secret = secret_name(name)
            way = f"`stoker secret set {secret}` and --secret {name} keep it to the job"
            show_warning(f"{name} looks like a key, and all who may read the job see it in env; {way}")
    return found


def _secret(text: str) -> tuple[str, str]:
    variable, equals, source = text.partition("=")
    if not variable or (equals and not source):
        raise BadInput(f"--secret {text}: write VARIABLE, VARIABLE=NAME or VARIABLE=NAME/KEY")
    return variable, source or secret_name(variable)


def _data(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise BadInput(f"--data {text}: write NAME=FROM, for example train=./big")
    return name, source


def _send(
    submit: Callable[..., Any], manifest: Manifest, given: dict[str, Any], number: int, *, dry_run: bool = False
) -> Any:
    key = given["idempotency_key"]
    if key and number:
        key = f"{key}.{number}"  # several documents, one key: each its own job
    try:
        return submit(manifest.body, idempotency_key=key, dry_run=dry_run)
    except ApiError as error:
        if not error.errors:
            raise
        raise _Refused(manifest.explain(error)) from None
