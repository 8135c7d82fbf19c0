"""Which Python a program means, and what that Python says of itself: its environment, and where it finds packages.

The interpreter itself is asked (`question.py`), in a short process of its own: only it knows what its .pth files, hooks
and user folders come to. Called by `environments`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any

ASK_S = 10.0
_QUESTION = Path(__file__).with_name("question.py")
_MARK = "stoker-environment:"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_WRAPPED = re.compile(rb"#!/bin/sh\n'''exec' \"?([^\"' \n]+)")
"""How pip writes the first lines of a script whose interpreter's path is too long for one."""
_HEAD_BYTES = 1024


class Kind(StrEnum):
    """Of an environment; the values are the question's."""

    SYSTEM = ""
    VENV = "venv"
    CONDA = "conda"


ACTIVE = {Kind.VENV: "VIRTUAL_ENV", Kind.CONDA: "CONDA_PREFIX"}
"""The variable that names an environment which is activated."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What a Python says of itself. All paths as it has them, links not followed."""

    executable: str
    prefix: str
    kind: Kind
    path: tuple[str, ...]
    """Where it looks for modules, in order."""
    modules: tuple[tuple[str, str], ...]
    """Modules that an editable install's hook finds, with their folder or file."""
    editable: tuple[tuple[str, str, bool], ...]
    """Distributions that are installed editable, their folder's URL, and whether a hook finds them before any path."""


def python_of(program: str) -> str | None:
    """The Python that runs `program`, a path: it itself, that of its first line, else the one in `PATH`."""
    if _is_python(program):
        return program
    return _of_first_line(program) or shutil.which("python") or shutil.which("python3")


def ask(python: Sequence[str], *, folder: str, timeout_s: float = ASK_S, chatty: bool = False) -> Interpreter | None:
    """What the Python that this command starts in `folder` reports; None: it can't be run, or gives no answer.

    `chatty`: what the command prints on standard error is for people to see.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # no job inherits it
    try:
        done = subprocess.run(
            [*python, str(_QUESTION)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if chatty else subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        return _parse(json.loads(done.stdout.decode(errors="replace").rpartition(_MARK)[2]))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return None


def _parse(data: Any) -> Interpreter:
    """Raises: ValueError, KeyError, TypeError."""
    return Interpreter(
        executable=str(data["executable"]),
        prefix=str(data["prefix"]),
        kind=Kind(data["kind"]),
        path=tuple(str(path) for path in data["path"]),
        modules=tuple((str(name), str(path)) for name, path in data["modules"]),
        editable=tuple((str(name), str(url), early is True) for name, url, early in data["editable"]),
    )


def _is_python(program: str) -> bool:
    return _PYTHON.fullmatch(PurePath(program).name) is not None


def _of_first_line(program: str) -> str | None:
    try:
        with Path(program).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if (wrapped := _WRAPPED.match(head)) is not None:
        return os.fsdecode(wrapped[1])
    if not head.startswith(b"#!"):
        return None
    arguments = os.fsdecode(head[2:].partition(b"\n")[0]).split()
    if arguments and PurePath(arguments[0]).name == "env":
        arguments = [one for one in arguments[1:] if not one.startswith("-") and "=" not in one]
    return shutil.which(arguments[0]) if arguments and _is_python(arguments[0]) else None
