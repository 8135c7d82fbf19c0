"""Packages of the shipped folder that a Python has installed editable: where in the copy they are, so that the job
imports what was submitted and not what the folder holds by then.

Pure but for looking at the folders of what is shipped. Source: PEP 660 and the forms that build backends give it: a
path in a .pth file (hatchling, setuptools with a src folder, flit, poetry, PDM, uv, `setup.py develop`), or a hook that
is asked after all paths (setuptools without one). PYTHONPATH goes before both. Hooks that are asked before all paths
(meson-python, scikit-build-core) can't be led to the copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from stoker.client.code.bundle import Bundle

from .interpreter import Interpreter

_COMPILED = (".so", ".pyd")


@dataclass(frozen=True, slots=True)
class Editable:
    """What becomes of a folder's editable installs in a job."""

    python_path: tuple[str, ...] = ()
    """Folders within the code that go first; '.' is all of it."""
    live: tuple[str, ...] = ()
    """What is imported from the folder itself nevertheless, and why: sentences for people."""


def editable_of(found: Interpreter, bundle: Bundle) -> Editable:
    """Of `found`'s packages those that lie in the bundle's folder. Cost: one listing per folder with Python files."""
    shipped = _Shipped(bundle, os.path.realpath(found.prefix))
    roots: dict[str, None] = {}
    live: dict[str, str] = {}  # folder within the code → why it is not the copy's
    seen: set[str] = set()
    for path in found.path:
        if (within := shipped.within(path)) is not None:
            seen.add(within)
            _sort_in(within, within, shipped, roots, live)
    for name, path in found.modules:
        if (within := shipped.within(path)) is None:
            continue
        seen.add(within)
        root = _root_of(name, within)
        if root is None:
            live[within] = f"the module is called {name} there"
        else:
            _sort_in(within, root, shipped, roots, live)
    for name, url, early in found.editable:
        project = shipped.within(_path_of(url))
        if project is not None and (early or not any(_below(path, project) for path in seen)):
            live[project] = f"{name} is found by a hook of its own, not by a path"
            roots = {root: None for root in roots if not _below(root, project)}
    return Editable(tuple(roots), tuple(shipped.says(path, why) for path, why in sorted(live.items())))


def _sort_in(path: str, root: str, shipped: _Shipped, roots: dict[str, None], live: dict[str, str]) -> None:
    why = shipped.lacks(path)
    if why is None:
        roots[root] = None
    else:
        live[path] = why


def _root_of(module: str, within: str) -> str | None:
    """The folder that holds the top-level package, if the path ends as the module's name does."""
    names = module.split(".")
    parts = ([] if within == "." else within.split("/")) or [""]
    parts[-1] = parts[-1].removesuffix(".py")
    if parts[-len(names) :] != names:
        return None
    return "/".join(parts[: -len(names)]) or "."


def _below(path: str, folder: str) -> bool:
    return folder == "." or path == folder or path.startswith(f"{folder}/")


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder}{os.sep}")


def _path_of(url: str) -> str:
    return unquote(urlsplit(url).path) if url.startswith("file:") else ""


class _Shipped:
    """The folder as it is, and as it is shipped."""

    def __init__(self, bundle: Bundle, prefix: str) -> None:
        self._folder, self._prefix = bundle.folder, prefix
        self._paths = bundle.by_path
        self._python_folders = {os.path.dirname(path) for path in self._paths if path.endswith(".py")}  # noqa: PTH120

    def within(self, path: str) -> str | None:
        """The path within the folder, '.' for all of it. None: it is elsewhere, or the environment's own."""
        if not os.path.isabs(path):  # noqa: PTH117
            return None
        real = os.path.realpath(path)
        if not _holds(self._folder, real) or (_holds(self._folder, self._prefix) and _holds(self._prefix, real)):
            return None
        return os.path.relpath(real, self._folder)

    def says(self, path: str, why: str) -> str:
        place = os.path.normpath(f"{self._folder}/{path}")
        return f"the job imports {place} as it is by then, not as it was submitted: {why}"

    def lacks(self, path: str) -> str | None:
        """Why what is imported from `path` would not work from the copy; None: it does."""
        if path in self._paths:
            return None
        folders = sorted(folder for folder in self._python_folders if _below(folder or ".", path))
        if not folders:
            return "it is left out of the copy (.gitignore or .stokerignore)"
        for folder in folders:
            try:
                names = os.listdir(os.path.join(self._folder, folder))  # noqa: PTH118, PTH208
            except OSError:
                continue
            for name in sorted(names):
                file = f"{folder}/{name}" if folder else name
                if name.endswith(_COMPILED) and file not in self._paths:
                    return f"its compiled module {file} is left out of the copy (.gitignore or .stokerignore)"
        return None
