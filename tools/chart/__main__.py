"""`python -m tools.chart`: writes what of helm/stoker is generated.

`--check`: says whether it is up to date, and writes nothing. `--lint`: has helm look at the chart afterwards.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.testbed import build

from . import dashboards, rendering, text

CHART = Path(__file__).resolve().parents[2] / "helm" / "stoker"


def generated() -> dict[Path, str]:
    """File → what must stand there."""
    return {
        CHART / "Chart.yaml": text.chart_yaml(),
        CHART / "values.yaml": text.values_yaml(),
        CHART / "values.schema.json": text.schema_json(),
        CHART / "README.md": text.readme((Path(__file__).parent / text.ROOT_README).read_text()),
        **{CHART / "files" / "dashboards" / name: made for name, made in dashboards.files().items()},
    }


def stale(*, write: bool) -> list[str]:
    """The files that differ from the models, rewritten if `write`."""
    wanted = generated()
    differ = [path for path, made in wanted.items() if not path.exists() or path.read_text() != made]
    extra = [path for path in sorted((CHART / "files" / "dashboards").glob("*")) if path not in wanted]
    if write:
        for path in differ:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        for path in extra:
            path.unlink()
    return [str(path.relative_to(CHART.parents[1])) for path in (*differ, *extra)]


if __name__ == "__main__":
    checking = "--check" in sys.argv
    behind = stale(write=not checking)
    for name in behind:
        print(f"{name}: {'out of date; run python -m tools.chart' if checking else 'written'}")
    if "--lint" in sys.argv:
        build.build("helm")
        print(rendering.lint())
    sys.exit(1 if checking and behind else 0)
