"""What a command that ships its folder needs of the environment it is submitted from: the program itself, the variables
that name the environment, and the folders of the copy that Python looks into first.

On one machine the environment is used where it is, and no job makes one. On a cluster programs and packages are the
image's. Called by `stoker.client.code.placing`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.client.code.bundle import Bundle
from stoker.client.errors import BadInput

from .editable import editable_of
from .interpreter import ACTIVE, ASK_S, Interpreter, Kind, ask, python_of
from .launchers import Opaque, launcher_of, take_apart

LAUNCHER_S = 600.0
"""A launcher may bring its environment up to date first, as it does whenever it runs something."""

LISTS = ("uv.lock", "requirements.txt")
"""Files of a folder that list packages."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a job is given. Empty where there is nothing to give."""

    command: tuple[str, ...]
    """Without a launcher, where its environment's own program does the same."""
    variables: dict[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    says: str = ""
    """One line for people."""
    warnings: tuple[str, ...] = ()
    launched: bool = False
    """A launcher was run to find it."""


class Environments:
    """Of the commands that ship one folder; each Python is asked once."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._asked: dict[tuple[str, ...], Interpreter | None] = {}

    def here(self, command: Sequence[str], working_dir: str) -> Environment:
        """For a job on this machine, whose command starts in `working_dir` of the folder."""
        folder = str(Path(self._bundle.folder, working_dir))
        launcher = launcher_of(command)
        if launcher is None:
            return self._given(command, self._ask(python_of(shutil.which(command[0]) or command[0])))
        try:
            launched = take_apart(command, folder)
        except Opaque as error:
            return self._left_to(launcher, str(error), command)
        found = self._ask(*launched.launcher, "python", folder=folder, timeout_s=LAUNCHER_S)
        if found is None:
            return self._left_to(launcher, f"`{' '.join(launched.launcher)} python` does not work here", command)
        program = _program(launched.command[0], found)
        if program is None:
            return self._left_to(launcher, f"{launched.command[0]} is no program of {found.prefix}", command)
        return replace(self._given((program, *launched.command[1:]), found, says=found.prefix), launched=True)

    def elsewhere(self, command: Sequence[str]) -> Environment:
        """For a job on a cluster: the command as it is, and what this machine's environment has of the folder."""
        path = self._path_elsewhere(command)
        listed = next((name for name in LISTS if name in self._bundle.by_path), None)
        says = [
            f"; {listed} is not installed (--install does that)" if listed else "",
            f"; imports from the copy first ({', '.join(path)})" if path else "",
        ]
        return Environment(tuple(command), python_path=path, says=f"the image's{''.join(says)}" if any(says) else "")

    def installed(self, command: Sequence[str], listed: str) -> Environment:
        """For a job whose packages are installed where it runs: the command as it is. Raises: BadInput."""
        if launcher := launcher_of(command):
            raise BadInput(f"{launcher} makes an environment of its own; without --install, or as `python …`")
        path = self._path_elsewhere(command)
        says = f"; imports from the copy first ({', '.join(path)})" if path else ""
        return Environment(tuple(command), python_path=path, says=f"{listed}, installed once for the project{says}")

    def _path_elsewhere(self, command: Sequence[str]) -> tuple[str, ...]:
        """What this machine's environment has of the folder."""
        python = python_of(shutil.which(command[0]) or command[0]) if launcher_of(command) is None else None
        found = self._ask(python or self._own_python() or shutil.which("python"))
        return () if found is None else editable_of(found, self._bundle).python_path

    def _given(self, command: Sequence[str], found: Interpreter | None, says: str = "") -> Environment:
        if found is None:
            return Environment(tuple(command))
        editable = editable_of(found, self._bundle)
        path = editable.python_path
        return Environment(
            tuple(command),
            {} if found.kind is Kind.SYSTEM else {ACTIVE[found.kind]: found.prefix},
            path,
            f"{found.prefix}, imports from the copy first ({', '.join(path)})" if path else says,
            editable.live,
        )

    def _left_to(self, launcher: str, why: str, command: Sequence[str]) -> Environment:
        """The launcher itself runs in the job: uv with the project's environment as it is, if there is one."""
        found = self._ask(self._own_python()) if launcher == "uv" else None
        if found is None:
            warning = (
                f"{why}, so {launcher} itself runs in the job and makes an environment there; to use yours, name its "
                "own program, for example .venv/bin/python"
            )
            return Environment(tuple(command), warnings=(warning,))
        given = self._given(command, found, says=found.prefix)
        warning = f"{why}, so uv itself runs in the job, with {found.prefix}; what it adds is made there each time"
        uv = {"UV_PROJECT_ENVIRONMENT": found.prefix, "UV_NO_SYNC": "1"}
        return replace(given, variables=given.variables | uv, warnings=(*given.warnings, warning))

    def _ask(self, *arguments: str | None, folder: str | None = None, timeout_s: float = ASK_S) -> Interpreter | None:
        python = tuple(one for one in arguments if one is not None)
        if python and python not in self._asked:
            self._asked[python] = ask(
                python, folder=folder or self._bundle.folder, timeout_s=timeout_s, chatty=len(python) > 1
            )
        return self._asked.get(python)

    def _own_python(self) -> str | None:
        return shutil.which(os.path.join(self._bundle.folder, ".venv", "bin", "python"))  # noqa: PTH118 (a link stays)


def _program(word: str, found: Interpreter) -> str | None:
    """The program that a launcher means by a word: of the environment, else one in `PATH` or by its path."""
    own = os.path.join(found.prefix, "bin", word)  # noqa: PTH118
    if os.access(own, os.X_OK):
        return own
    return word if "/" in word or shutil.which(word) else None
