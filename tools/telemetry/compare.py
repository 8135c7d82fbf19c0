"""Panel by panel: what it shows, what it has to show, whether that is the same. Asks Prometheus as a dashboard does."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.screenshots.questions import Prometheus, Questions, Window

from .figures import Figure
from .panels import EMPTY, all_panels
from .truth import Truth

DASHBOARDS = Path(__file__).resolve().parents[2] / "helm" / "stoker" / "files" / "dashboards"
ROWS: dict[tuple[str, str], tuple[str, ...]] = {
    ("stoker-cluster", "Most wasteful jobs"): ("job_name",),
    ("stoker-gpu", "Holders"): ("gpu", "project", "job_name", "attempt", "worker", "queue", "user", "method"),
    ("stoker-gpu", "Processes"): ("gpu",),
    ("stoker-gpu", "XIDs"): ("gpu", "xid"),
    ("stoker-gpu", "MIG devices"): ("gpu", "profile"),
    ("stoker-gpu", "Hardware"): ("gpu", "model"),
    ("stoker-job", "GPUs used"): ("gpu", "attempt", "worker"),
    ("stoker-queue", "GPU-hours by queue"): ("queue",),
    ("stoker-queue", "GPU-hours by user"): ("user", "queue"),
    ("stoker-queue", "Job efficiency"): ("job_name",),
    ("stoker-queue", "Oversized GPU requests"): ("job_name",),
}
"""By what a row of a table is known."""
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
CHOSEN = {"project": "vision", "job": "digits-gang"}
SETTLE_S = 12.0
"""After the run's begin: series that begin are held against their figures from then on."""


@dataclass(frozen=True)
class Verdict:
    dashboard: str
    panel: str
    shown: str
    computed: str
    points: int
    ok: bool
    why: str = ""


def verdicts(truth: Truth, url: str, window: Window, only: Iterable[str] = (), slack: float = 0.0) -> list[Verdict]:
    """slack: For a machine that is busy with other things. So large a share of a graph's points may be off or missing,
    and each value by so large a share of itself: what is left is a check of what is computed, not of how exactly.
    """
    made, found = all_panels(), []
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(path.read_text())
        answers = Questions(dashboard, Prometheus(url), window, CHOSEN).answers()
        for panel in dashboard["panels"]:
            key = dashboard["uid"], panel["title"]
            if panel["type"] == "row" or (only and panel["title"] not in only):
                continue
            if key == ("stoker-cluster", "Alerts firing") or key == ("stoker-cluster", "Alerts"):
                continue  # verify_alerts
            if key not in made:
                found.append(Verdict(*key, "", "", 0, False, "no figure"))
                continue
            found.append(_panel(key, panel, answers[panel["id"]], made[key](truth), truth, slack))
    return found


def _panel(
    key: tuple[str, str],
    panel: Mapping[str, Any],
    answers: Mapping[str, Any],
    figures: Mapping[str, Mapping[str, Figure]],
    truth: Truth,
    slack: float,
) -> Verdict:
    wrong: list[str] = []
    pairs: list[tuple[float, float]] = []
    points = 0
    for target in panel["targets"]:
        ref = target["refId"]
        if ref not in figures:
            wrong.append(f"{ref}: no figure")
            continue
        shown = {_legend(key, target, series["metric"]): _points(series, truth.end) for series in answers[ref]}
        for legend in sorted({*shown, *figures[ref]}):
            figure = figures[ref].get(legend)
            about = f"{ref} {legend or 'value'}"
            if figure is None:
                if any(abs(value) > 1e-9 for _, value in shown[legend]):
                    wrong.append(f"{about}: shown as {_text(shown[legend][-1][1])}, and nobody knows why")
                continue
            seen, mean, nominal, bad = _held_against(figure, shown.get(legend, []), target["instant"], truth, slack)
            points += seen
            if bad:
                wrong.append(f"{about}: {bad}")
            if seen:
                pairs.append((mean, nominal))
    if not points and key not in EMPTY and not wrong:
        wrong.append("empty")
    first = max(pairs, key=lambda pair: abs(pair[1]), default=(math.nan, math.nan))
    why = "; ".join(wrong[:4]) + (f" (and {len(wrong) - 4} more)" if len(wrong) > 4 else "")
    return Verdict(
        *key, _text(first[0]), _text(first[1]), points, not wrong, why or ("" if points else EMPTY.get(key, ""))
    )


def _held_against(
    figure: Figure, shown: list[tuple[float, float]], instant: bool, truth: Truth, slack: float
) -> tuple[int, float, float, str]:
    """How many points, their mean, the expected mean, what is wrong."""
    settled = [
        (at, value) for at, value in shown if instant or (at >= truth.begin + SETTLE_S and not truth.stood_still(at))
    ]
    wrong = []
    for at, value in settled:
        low, expected, high = figure.at(at)
        give = slack * abs(expected) + 1e-9
        if not low - give <= value <= high + give:
            wrong.append(
                f"{_text(value)} at {at - truth.begin:.0f} s is not {_text(low)} … {_text(expected)} … {_text(high)}"
            )
    if not instant:
        if len(wrong) <= slack * len(settled):
            wrong = []
        wrong += _missing(figure, {at for at, _ in settled}, truth, slack)
    if not settled:
        low, expected, _ = figure.at(truth.end)
        if instant and low > 0 and not slack:  # else a job may have been too short to be scraped
            wrong.append(f"nothing is shown, {_text(expected)} expected")
        return 0, math.nan, math.nan, "; ".join(wrong[:2])
    mean = sum(value for _, value in settled) / len(settled)
    expected_each = [figure.at(at)[1] for at, _ in settled]
    nominal = sum(expected_each) / len(settled)
    # Each change may be seen a point earlier or later.
    jumps = sum(abs(after - before) for before, after in itertools.pairwise(expected_each)) / len(settled)
    wide = sum((figure.at(at)[2] - figure.at(at)[0]) for at, _ in settled) / len(settled)
    if not instant and abs(mean - nominal) > (figure.whole + slack) * abs(nominal) + 0.12 * wide + jumps + 1e-9:
        wrong.append(f"mean {_text(mean)}, computed {_text(nominal)}")
    if len(wrong) > 1:
        wrong = [f"{len(wrong)} of {len(settled)} points: {wrong[0]}"]
    return len(settled), mean, nominal, "; ".join(wrong)


def _missing(figure: Figure, there: set[float], truth: Truth, slack: float) -> list[str]:
    steps = int((truth.end - truth.begin) / truth.step_s)
    moments = [round(truth.begin, 3) + number * truth.step_s for number in range(steps + 1)]
    have = {round(at) for at in there}
    gaps = [
        at
        for at in moments
        if at >= truth.begin + SETTLE_S
        and not truth.stood_still(at)
        and figure.needed(at)
        and figure.at(at)[0] > 0
        and not have & {round(at), round(at) - 1, round(at) + 1}
    ]
    return [f"no point at {gaps[0] - truth.begin:.0f} s"] if len(gaps) > slack * len(moments) else []


def _legend(key: tuple[str, str], target: Mapping[str, Any], metric: Mapping[str, str]) -> str:
    if key in ROWS:
        return "/".join(metric.get(label, "") for label in ROWS[key])
    legend = target.get("legendFormat", "")
    return "" if legend == "__auto" else _LEGEND.sub(lambda found: metric.get(found[1], ""), legend)


def _points(series: Mapping[str, Any], end: float) -> list[tuple[float, float]]:
    found = [series["value"]] if "value" in series else series["values"]
    numbers = [(float(at), float(value)) for at, value in found]
    return [(at, value) for at, value in numbers if not math.isnan(value)]


def _text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
