"""`uv run train.py` and its like: programs that run a command in an environment which they find, or else make.

In a job's copy of the folder they would make a new one each time. Owns their options; runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from stoker.client.errors import StokerError


@dataclass(frozen=True, slots=True)
class _Options:
    """Of a launcher's `run`: those that change nothing about the way its command is run in its environment."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    """Options with a value."""


_CONDA = _Options(
    flags=frozenset({"--no-capture-output", "--live-stream", "-v", "--verbose"}),
    values=frozenset({"-n", "--name", "-p", "--prefix"}),
)
_OPTIONS = {
    "uv": _Options(
        flags=frozenset(
            [
                "-q",
                "--quiet",
                "-v",
                "--verbose",
                "--active",
                "--all-extras",
                "--all-groups",
                "--all-packages",
                "--dev",
                "--exact",
                "--frozen",
                "--locked",
                "--managed-python",
                "--no-default-groups",
                "--no-dev",
                "--no-editable",
                "--no-progress",
                "--no-sync",
                "--offline",
            ]
        ),
        values=frozenset(
            ["--extra", "--no-extra", "--group", "--no-group", "--only-group", "--package", "-p", "--python"]
        ),
    ),
    "pixi": _Options(flags=frozenset({"--frozen", "--locked"}), values=frozenset({"-e", "--environment"})),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
    "poetry": _Options(),
    "hatch": _Options(),
    "pdm": _Options(),
    "pipenv": _Options(),
    "rye": _Options(),
}
_INLINE = re.compile(rb"^# /// script\s*$", re.MULTILINE)
_HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Launched:
    """A launcher's command taken apart."""

    launcher: tuple[str, ...]
    """The arguments that run what follows in the environment: uv run --frozen."""
    command: tuple[str, ...]
    """What is run there."""


class Opaque(StokerError):
    """The launcher does something of its own that no other way of starting the command does."""


def launcher_of(command: Sequence[str]) -> str | None:
    """uv, poetry, …: the launcher that the command begins with."""
    name = PurePath(command[0]).name
    return name if name in _OPTIONS and len(command) > 1 and command[1] == "run" else None


def take_apart(command: Sequence[str], folder: str) -> Launched:
    """The command that a launcher's runs in its environment, started in `folder`. Raises: Opaque."""
    name = PurePath(command[0]).name
    known = _OPTIONS[name]
    at, module = 2, False
    while at < len(command) and command[at].startswith("-"):
        word, _, value = command[at].partition("=")
        if word == "--":
            at += 1
            break
        if name == "uv" and word in {"-m", "--module"}:
            module = True
            at += 1
            break
        if word in known.values:
            at += 1 if value else 2
        elif word in known.flags:
            at += 1
        else:
            raise Opaque(f"only {name} itself knows what `{name} run {word}` does")
    rest = command[at:]
    if not rest:
        raise Opaque(f"`{name} run` names no command")
    launcher = tuple(word for word in command[:at] if word not in {"--", "-m", "--module"})
    if module:
        return Launched(launcher, ("python", "-m", *rest))
    if name == "uv" and rest[0].endswith(".py"):
        if _brings_its_own(Path(folder, rest[0])):
            raise Opaque(f"{rest[0]} names packages of its own (PEP 723)")
        return Launched(launcher, ("python", *rest))
    return Launched(launcher, tuple(rest))


def _brings_its_own(script: Path) -> bool:
    try:
        with script.open("rb") as file:
            return _INLINE.search(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False
