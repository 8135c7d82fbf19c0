"""Writes helm/stoker/files/crds from the models, and the docs. `--check`: says instead whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from stoker.spec.crd.definition import DEFINITIONS, custom_resource
from stoker.spec.names import GROUP
from tools.generate import docs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "helm" / "stoker" / "files" / "crds"
HEADER = "# Generated from operator/stoker/spec by `python -m tools.generate.crds`; change the models, not this file.\n"


class _Text(yaml.SafeDumper):
    """Lists indented as people do, and no anchors for what occurs twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def generated() -> dict[Path, str]:
    """File → what must stand there."""
    return {
        FOLDER / f"{GROUP}_{definition.kind.plural}.yaml": HEADER
        + yaml.dump(custom_resource(definition), Dumper=_Text, sort_keys=False, width=120, allow_unicode=True)
        for definition in DEFINITIONS
    }


def stale(*, write: bool) -> list[str]:
    """The files that differ from the models, rewritten if `write`; what no model makes any more is removed."""
    wanted = generated()
    differ = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    extra = [path for path in sorted(FOLDER.glob("*")) if path not in wanted]
    if write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for path in differ:
            path.write_text(wanted[path])
        for path in extra:
            path.unlink()
    return [str(path.relative_to(ROOT)) for path in (*differ, *extra)]


if __name__ == "__main__":
    checking = "--check" in sys.argv
    behind = stale(write=not checking) + docs.stale(write=not checking)
    for name in behind:
        print(f"{name}: {'out of date; run python -m tools.generate.crds' if checking else 'written'}")
    sys.exit(1 if checking and behind else 0)
