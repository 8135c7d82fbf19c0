"""Run by a user's own Python, whichever that is (3.7 and later): prints what it is and where it finds packages.

Never imported; `interpreter` runs it by its path and reads the answer.
"""

from __future__ import annotations

import sys

if sys.path and __file__.startswith(sys.path[0]):
    del sys.path[0]  # our own folder: the job does not have it, and a json.py there would be taken for Python's

import json
import os

MYPY = False
if MYPY:
    from collections.abc import Iterator

MARK = "stoker-environment:"


def main() -> None:
    prefix = sys.prefix
    conda = os.path.isdir(os.path.join(prefix, "conda-meta"))
    answer = {
        "executable": sys.executable,
        "prefix": prefix,
        "kind": "conda" if conda else "venv" if prefix != sys.base_prefix else "",
        "path": sys.path,
        "modules": list(hooked()),
        "editable": list(editable()),
    }
    print("\n" + MARK + json.dumps(answer))


def hooked() -> Iterator[tuple[str, str]]:
    """Modules that setuptools' hooks find, with their places."""
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        for name, path in dict(getattr(module, "MAPPING", {})).items():
            yield str(name), str(path)


def editable() -> Iterator[tuple[str, str, bool]]:
    """Distributions that are installed editable, their folders' URLs, and whether a hook finds them before any path."""
    names = [getattr(finder, "__name__", "") for finder in sys.meta_path]
    first = sys.meta_path[: names.index("PathFinder") if "PathFinder" in names else 0]
    early = {"%s.py" % getattr(finder, "__module__", "") for finder in first}
    try:
        from importlib.metadata import distributions
    except ImportError:
        return
    for found in distributions():
        try:
            origin = json.loads(found.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                files = {str(file) for file in found.files or ()}
                yield str(found.metadata["Name"]), str(origin["url"]), not early.isdisjoint(files)
        except (OSError, ValueError, KeyError, AttributeError):
            continue


main()
