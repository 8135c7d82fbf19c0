"""Which paths .gitignore and .stokerignore files leave out, with git's own meaning.

Owns the rules' syntax, their order and where they lie; walks no folder. pathspec translates the single patterns; what
git says about order and folders is kept here, because the caller asks folder by folder, as git does: below a folder
that is left out nothing is looked at, so nothing there can be taken back in. Called by `folder.py`.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from stoker.client.errors import BadInput

GIT_RULES = ".gitignore"
OUR_RULES = ".stokerignore"
_TRAILING_BLANKS = re.compile(r"(?<!\\)((?:\\\\)*) +\Z")
_MANY_STARS = re.compile(r"\*{3,}")
_CLASSES = {"[:alnum:]": "a-zA-Z0-9", "[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:lower:]": "a-z", "[:upper:]": "A-Z"}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One line. `by_name`: it has no slash, so the last part of a path is all that counts."""

    search: Callable[[str], re.Match[str] | None]
    leaves_out: bool
    by_name: bool
    folders_only: bool
    line: int


class Rules:
    """The lines of one file, which is at `path`."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        lines = (line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n"))
        read = (_read(line, number) for number, line in enumerate(lines, 1))
        self._patterns = [pattern for pattern in read if pattern is not None][::-1]

    def verdict(self, path: str, name: str, is_folder: bool) -> _Pattern | None:
        """The line that leaves it out or takes it in; None: nothing is said. `path` is seen from the file's folder."""
        for pattern in self._patterns:  # the last line that fits is the one that counts
            if pattern.folders_only and not is_folder:
                continue
            found = pattern.search(name if pattern.by_name else path)
            # A named group means that only a folder above fits; the caller asked about that one before.
            if found is not None and found.lastgroup is None:
                return pattern
        return None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file of rules, counted from 1."""

    path: str
    number: int


@dataclass(frozen=True, slots=True)
class Layers:
    """All rules that hold in a folder, the strongest first, each with the length of its own folder's path and a slash.

    Ours go before git's, and among each the nearest.
    """

    ours: tuple[tuple[int, Rules], ...] = ()
    gits: tuple[tuple[int, Rules], ...] = ()

    def within(self, folder: str) -> Layers:
        """The rules that hold in `folder` too, which is absolute and one step down."""
        ours, gits = _read_rules(f"{folder}/{OUR_RULES}"), _read_rules(f"{folder}/{GIT_RULES}")
        if ours is None and gits is None:
            return self
        at = len(folder) + 1
        return Layers(
            (((at, ours),) if ours else ()) + self.ours,
            (((at, gits),) if gits else ()) + self.gits,
        )

    def leave_out(self, path: str, name: str, is_folder: bool) -> Line | None:
        """What leaves out the file or folder at this absolute path; None: it is not left out."""
        for layers in (self.ours, self.gits):
            for at, rules in layers:
                verdict = rules.verdict(path[at:], name, is_folder)
                if verdict is not None:
                    return Line(rules.path, verdict.line) if verdict.leaves_out else None
        return None


def rules_above(folder: str) -> Layers:
    """What the git repository around `folder` says: its info/exclude, and the rules of the folders above.

    A folder that is itself left out by them is shipped all the same: it is the one that was asked for.
    """
    path = Path(folder)
    top = next((above for above in (path, *path.parents) if _is_there(above / ".git")), None)
    if top is None:
        return Layers()
    excluded = _read_rules(str(_git_folder(top / ".git") / "info/exclude"))
    layers = Layers(gits=((len(_no_slash(top)) + 1, excluded),) if excluded else ())
    for above in _from(top, path):
        layers = layers.within(_no_slash(above))
    return layers


def _from(top: Path, folder: Path) -> Iterator[Path]:
    """The folders from `top` down to the one above `folder`."""
    yield from (above for above in reversed(folder.parents) if above == top or top in above.parents)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False  # not there, or not ours to see
    return True


def _no_slash(path: Path) -> str:
    return str(path).rstrip("/")


def _git_folder(dot_git: Path) -> Path:
    """Where the repository keeps info/; in a worktree or submodule .git is a file that says where."""
    try:
        text = dot_git.read_text(errors="surrogateescape")
        folder = dot_git.parent / text.removeprefix("gitdir:").strip()
        common = folder / "commondir"
        return folder / common.read_text(errors="surrogateescape").strip() if common.exists() else folder
    except (OSError, ValueError):
        return dot_git


def _read_rules(path: str) -> Rules | None:
    """A file of rules; none if it is not there, or is a link or a folder, as git has it. Raises: BadInput."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return Rules(path, file.read())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return None
        raise BadInput(f"can't read {path}: {error.strerror}") from None


def _read(line: str, number: int) -> _Pattern | None:
    """The pattern of a line; none for comments, and for what git never lets match."""
    line = _TRAILING_BLANKS.sub(r"\1", line)
    if not line or line.startswith("#"):
        return None
    body = line.removeprefix("!")
    folders_only = body.endswith("/")
    body = body.removesuffix("/")
    body = _MANY_STARS.sub("**", body)
    for written, means in _CLASSES.items():
        body = body.replace(written, means)
    if not body:
        return None
    # The sign is put back as git reads it: one in front, whatever the pattern itself begins with.
    text = f"!{body}" if line.startswith("!") else body
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Python's, of a '[[' that means what git means by it
            compiled = GitIgnoreSpecPattern(text)
    except (ValueError, re.error):
        return None
    if compiled.regex is None or compiled.include is None:
        return None
    return _Pattern(compiled.regex.search, bool(compiled.include), "/" not in body, folders_only, number)
