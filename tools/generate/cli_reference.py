"""The reference part of docs/cli.md, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from stoker.cli.main import cli

_WIDTH = 100


def reference() -> str:
    """Markdown: every command with its help, options included."""
    return "".join(f"### `{path}`\n\n```text\n{text}\n```\n\n" for path, text in _pages(cli, "stoker", None))


def _pages(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    with click.Context(
        command,
        info_name=path.rpartition(" ")[2],
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    ) as context:
        if not isinstance(command, click.Group) or parent is None:
            yield path, command.get_help(context).rstrip()
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from _pages(below, f"{path} {name}", context)
