"""The docs say what the command does: the reference is the help itself, and every example parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from stoker.cli.main import cli
from stoker.cli.manifest import parse_manifests
from stoker.spec.job import TrainingJobSpec
from tools.generate.cli_reference import reference

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "docs/cli.md", ROOT / "docs/quickstart.md", ROOT / "README.md"]
EXAMPLES = sorted(
    {line.removeprefix("$ ") for path in DOCS for line in path.read_text().splitlines() if line.startswith("$ stoker ")}
)


def test_the_reference_is_the_help_itself() -> None:
    assert reference() in (ROOT / "docs/cli.md").read_text(), "run python -m tools.generate.docs"


def test_every_command_has_an_example() -> None:
    shown = "\n".join(EXAMPLES)
    for name in cli.list_commands(click.Context(cli)):
        assert f"stoker {name} " in shown, name


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_parses(line: str) -> None:
    args = shlex.split(line, comments=True)[1:]
    args = args[: args.index(">")] if ">" in args else args
    command: click.Command = cli
    context = cli.make_context("stoker", args)
    while isinstance(command, click.Group):
        name, below, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert below is not None
        command, context = below, below.make_context(name, rest, parent=context)


def test_yaml_in_the_docs_is_a_valid_job() -> None:
    blocks = [block for path in DOCS for block in re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)]
    assert blocks
    for block in blocks:
        (manifest,) = parse_manifests(block, "docs")
        TrainingJobSpec.model_validate(manifest.body["spec"])
