"""docs/architecture.md stays true: its paths, names and rooms exist; and scripts that pages run do."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = [ROOT / name for name in ("operator", "api", "trainer-image")]
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)+|[\w-]+\.toml)(?::(?P<name>\w+))?")
NOT_FILES = {"pods/log", "nodes/proxy", "stoker.dev/v1alpha1", "operator/__init__.py"}


def test_every_path_and_name_exists() -> None:
    words = {word for span in SPAN.findall(TEXT) for word in span.split()}
    named = [found for word in sorted(words) if (found := PATH.fullmatch(word)) and found["path"] not in NOT_FILES]
    assert len(named) > 100
    assert [reason for found in named if (reason := _missing(found["path"], found["name"]))] == []


def _missing(path: str, name: str | None) -> str:
    found = [where for root in (ROOT, *SOURCES) if (where := root / path).exists()]
    if not found:
        return f"{path} is not there"
    defined = rf"^\s*(?:(?:async )?def|class) {name}\b|^{name}\b.*="
    return "" if name is None or re.search(defined, found[0].read_text(), re.MULTILINE) else f"{path} has no {name}"


def test_every_room_is_named() -> None:
    packages = {str(init.parent.relative_to(source)) for source in SOURCES for init in source.rglob("__init__.py")}
    modules = {f"stoker/{file.name}" for file in (ROOT / "operator" / "stoker").glob("[!_]*.py")}
    assert {room for room in packages - {"stoker"} | modules if f"`{room}`" not in TEXT} == set()


def test_every_script_exists() -> None:
    """Modules and files that any page runs with Python, also in its tables; the reader's own have no folder."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        found for page in pages for found in re.findall(r"python (-m [\w.]+|[\w-]+/[\w/.-]+\.py)", page.read_text())
    }
    paths = {name: name.removeprefix("-m ").replace(".", "/") if name.startswith("-m") else name for name in named}
    wanted = {name: (path, f"{path}.py", f"{path}/__main__.py") for name, path in paths.items() if path != "pytest"}
    assert [
        name for name, files in wanted.items() if not any((r / f).is_file() for r in (ROOT, *SOURCES) for f in files)
    ] == []
