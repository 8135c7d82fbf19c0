"""`python -m tools.screenshots`: draws every dashboard over a Prometheus, and says which panels are empty.

Without `--prometheus` it starts one with the sample data. Writes `<out>/<uid>.png`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.testbed.errors import BedError, Unavailable

from . import drawing, sample
from .questions import Prometheus, Questions, Refused, Window

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "helm" / "stoker" / "files" / "dashboards"


def shot(path: Path, prometheus: Prometheus, window: Window, wanted: dict[str, str], note: str) -> dict[str, Any]:
    """All that the page needs to draw the dashboard."""
    dashboard = json.loads(path.read_text())
    questions = Questions(dashboard, prometheus, window, wanted)
    return {
        "dashboard": dashboard, "answers": questions.answers(), "annotations": questions.annotations(),
        "chosen": questions.chosen, "note": note,
        "from": window.start * 1000, "to": window.end * 1000, "step": window.step_s * 1000,
    }  # fmt: skip


def empty(one: dict[str, Any]) -> list[str]:
    """Panels without a single value."""
    return [
        panel["title"]
        for panel in one["dashboard"]["panels"]
        if panel["type"] != "row" and not any(one["answers"][panel["id"]].values())
    ]


def draw(asked: argparse.Namespace, url: str, end: float, note: str) -> None:
    folder = drawing.bundle()
    wanted = dict(text.split("=", 1) for text in asked.set)
    window = Window(end - 3600 * asked.hours, end, asked.scrape)
    asked.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(DASHBOARDS.glob("*.json")):
        if asked.only and path.stem not in asked.only:
            continue
        made = shot(path, Prometheus(url), window, wanted, note)
        drawing.shoot(folder, made, asked.out / f"{path.stem}.png")
        print(f"{asked.out / path.stem}.png; empty: {', '.join(empty(made)) or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="screenshots", description=__doc__)
    parser.add_argument("--prometheus", default="", help="its URL; else one with sample data is started")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    parser.add_argument("--hours", type=float, default=3.0, help="how much is shown")
    parser.add_argument("--end", type=float, default=0.0, help="unix time at which it ends; now")
    parser.add_argument("--scrape", type=float, default=15.0, help="seconds between two scrapes")
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE")
    parser.add_argument("--only", action="append", default=[], metavar="UID")
    parser.add_argument("--note", default="", help="shown beside the variables")
    asked = parser.parse_args()
    try:
        if asked.prometheus:
            draw(asked, asked.prometheus, asked.end or time.time(), asked.note)
        else:
            asked.scrape = sample.STEP_S
            with sample.prometheus(asked.hours) as told:
                draw(asked, told.url, told.end, asked.note or "sample data: this cluster never was")
    except (Unavailable, BedError, Refused) as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
