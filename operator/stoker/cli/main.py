"""The `stoker` command: which commands there are, and how errors reach people.

Imports nothing but click until a command is known, so that `--help` and shell completion start at once. Never shows a
traceback, unless STOKER_DEBUG=1 asks for it. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 server unreachable; `run`
and `follow` leave with the job's.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NamedTuple

import click

from stoker import __version__
from stoker.client.errors import ApiError, StokerError


class _Entry(NamedTuple):
    """Where a command lives, and the line `stoker --help` gives it."""

    section: str
    module: str
    short: str


_COMMANDS = {
    "up": _Entry("Server", "server", "Run Stoker on this machine: API, operator and node in one."),
    "page": _Entry("Server", "page", "Print a link that opens the web page, signed in."),
    "run": _Entry("Jobs", "submit", "Submit a job and follow it to its end."),
    "submit": _Entry("Jobs", "submit", "Submit jobs and print their names."),
    "clone": _Entry("Jobs", "again", "Submit a job once more, with or without changes."),
    "set": _Entry("Jobs", "again", "Change a job's priority."),
    "follow": _Entry("Jobs", "submit", "Follow a job to its end, as `run` does."),
    "ls": _Entry("Jobs", "show", "List jobs, newest first."),
    "get": _Entry("Jobs", "show", "Show a job, or jobs, queues, nodes or runtimes."),
    "why": _Entry("Jobs", "show", "Say why a job is where it is, and what would start it."),
    "usage": _Entry("Jobs", "usage", "Show what jobs have had of GPUs: one job, or summed by user, queue, project, …"),
    "metrics": _Entry("Jobs", "metrics", "Show what a job has reported: loss, accuracy, your own metrics."),
    "logs": _Entry("Jobs", "streams", "Print what a job's worker printed."),
    "events": _Entry("Jobs", "streams", "Print what happened to a job."),
    "files": _Entry("Jobs", "files", "List what a job has left in its output folder."),
    "cp": _Entry("Jobs", "files", "Copy a job's files to this machine."),
    "exec": _Entry("Jobs", "sessions", "Run a command in one of a job's workers."),
    "port-forward": _Entry("Jobs", "sessions", "Reach ports of one of a job's workers."),
    "cancel": _Entry("Jobs", "act", "Stop jobs for good."),
    "suspend": _Entry("Jobs", "act", "Save and stop jobs until they are resumed."),
    "resume": _Entry("Jobs", "act", "Let suspended jobs run on."),
    "retry": _Entry("Jobs", "act", "Run failed or cancelled jobs again."),
    "delete": _Entry("Jobs", "act", "Delete jobs, with their events and logs."),
    "queue": _Entry("Queues", "queues", "List, set and remove queues."),
    "node": _Entry("Nodes", "nodes", "List nodes; close them or single GPUs to new jobs."),
    "secret": _Entry("Other", "project_secrets", "Set, list and delete a project's secrets."),
    "token": _Entry("Other", "tokens", "Make, list and revoke tokens for the server of a data folder."),
    "prometheus-config": _Entry("Other", "prometheus", "Print the scrape configuration for Prometheus."),
    "completion": _Entry("Other", "completion", "Print a shell's completion script."),
}

_FUNCTIONS = {"exec": "exec_", "set": "set_", "port-forward": "port_forward", "prometheus-config": "prometheus_config"}
"""Commands whose names no function can have."""


class StokerGroup(click.Group):
    """A group that imports a command's module when it is called, and turns our errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found = getattr(import_module(f"stoker.cli.commands.{entry.module}"), _FUNCTIONS.get(cmd_name, cmd_name))
        assert isinstance(found, click.Command)
        found.short_help = entry.short
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in _COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.short) for name, entry in _COMMANDS.items() if entry.section == section]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            from stoker.cli.habits import unknown_command

            ctx.fail(unknown_command(args[0], "", list(_COMMANDS)))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if os.environ.get("STOKER_DEBUG") == "1":
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except ApiError as error:
            raise _fault(_refusal(error), error.exit_code) from None
        except StokerError as error:
            raise _fault(str(error), error.exit_code) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise  # click's own business; a pipe closed early ends quietly
        except Exception as error:  # noqa: BLE001 (the edge: a person sees one line)
            raise _fault(f"internal error: {type(error).__name__}: {error} (STOKER_DEBUG=1 shows where)", 1) from None


def _fault(message: str, exit_code: int) -> click.exceptions.Exit:
    click.echo(f"stoker: {message}", err=True)
    return click.exceptions.Exit(exit_code)


def _refusal(error: ApiError) -> str:
    lines = [str(error)] if str(error) or not error.errors else []
    for fault in error.errors:
        line = f"{fault.pointer.strip('/').replace('/', '.')}: {fault.detail}" if fault.pointer else fault.detail
        if fault.detail not in str(error):
            lines.append(line)
    if error.status == 401:
        lines.append("give the server's token by STOKER_TOKEN (`stoker up` keeps it in <data folder>/token)")
    return "\n".join(lines)


def _complete_projects(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from stoker.cli.commands.names import complete_projects

    return complete_projects(ctx, param, incomplete)


@click.group(cls=StokerGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--server", metavar="URL", help="The server. [STOKER_SERVER, else what `stoker up` runs here]")
@click.option("--token", metavar="TOKEN", help="The token. Better by STOKER_TOKEN: arguments are seen by others.")
@click.option(
    "-p",
    "--project",
    metavar="PROJECT",
    envvar="STOKER_PROJECT",
    help="The project. [default: default]",
    shell_complete=_complete_projects,
)
@click.version_option(__version__, message="stoker %(version)s")
@click.pass_context
def cli(ctx: click.Context, server: str | None, token: str | None, project: str | None) -> None:
    """Stoker keeps GPUs fed: submit training jobs, follow them, and see why they wait.

    Start a server here with `stoker up`, then try: stoker run -f examples/digits.yaml
    """
    ctx.obj = {"server": server, "token": token, "project": project}


def main() -> None:
    """The console script."""
    cli.main(prog_name="stoker")


if __name__ == "__main__":
    main()
