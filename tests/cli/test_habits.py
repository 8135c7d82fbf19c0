"""Habits from other tools: their words for our commands."""

from __future__ import annotations

import re
import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stoker.cli.habits import ALSO, HABITS, QUEUE_HABITS, TOKEN_HABITS
from stoker.cli.main import _COMMANDS, cli

ASKED_FOR = ("ps", "jobs", "status", "describe", "apply", "stop", "kill", "rm", "attach", "top")


@pytest.mark.parametrize("word", ASKED_FOR)
def test_another_tool_s_word_leads_to_our_command(word: str) -> None:
    done = CliRunner().invoke(cli, [word, "digits-1"])
    assert done.exit_code == 2 and f"no command '{word}'; here it is: stoker {HABITS[word]}" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["queue", "list"], "no command 'queue list'; here it is: stoker queue ls"),
        (["queue", "st"], "no command 'queue st'; did you mean 'queue set'?"),
        (["token", "rm", "a"], "no command 'token rm'; here it is: stoker token revoke NAME"),
        (["STOP"], "here it is: stoker cancel JOB (stoker suspend JOB stops it until `resume`)"),
        (["evnts"], "no command 'evnts'; did you mean 'events'?"),
        (["xyzzy"], "no command 'xyzzy'\n"),
    ],
)
def test_words_of_groups_and_letters_that_are_near(words: list[str], says: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2 and says in done.stderr


def test_every_line_named_is_one_that_click_takes() -> None:
    """A word of ours is no other tool's, and what is named is there with these options."""
    lines = [
        *HABITS.values(),
        *QUEUE_HABITS.values(),
        *TOKEN_HABITS.values(),
        *(text.split(" s")[0] for text in ALSO.values()),
    ]
    for line in lines:
        words = shlex.split(re.sub(r",.*", "", line))
        if not words[0].startswith("--"):
            command: Any = cli
            context = cli.make_context("stoker", ["ls"], resilient_parsing=True)
            while words and isinstance(command, click.Group):
                command = command.get_command(context, words.pop(0))
                assert command is not None, line
            filled = [
                {"JOB": "a", "FILE": "f", "PORT": "80", "NAME": "n", "PROJECT": "p"}.get(word, word) for word in words
            ]
            command.make_context("x", filled, resilient_parsing=False)
    assert not set(HABITS) & set(_COMMANDS)
