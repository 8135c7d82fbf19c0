"""Every panel of every dashboard against a figure computed from a real run's own records.

    python -m tools.verify.dashboards [--length 600] [--keep 0] [--only TITLE]

`stoker up` under the fake NVML (8 GPUs), a real Prometheus that finds everything by HTTP service discovery, three users
with jobs in three queues: a gang that trains, jobs that are throttled, idle, stalled, fail, wait, are preempted; a GPU
that is lost, XIDs, memory errors, MIG devices, a stray process. Then each panel's queries are asked as Grafana asks
them and every point is held against the scenario's exact integrals, REST, and for Stoker's own workings its /metrics
read beside Prometheus. Prints a table; exit code 1 if a panel shows something else, or is empty without a reason.
With `--keep` all goes on for so many seconds, for `make screenshots PROMETHEUS=…`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tools.screenshots.questions import Window
from tools.telemetry.compare import Verdict, verdicts
from tools.telemetry.run import Run, play, prepared
from tools.telemetry.truth import Truth

ASKED_AS_S = 5.0
"""The scrape interval that Grafana is told: rates over 20 s, a point every 5 s. Scraped more often than that."""


def checked(
    folder: Path, length_s: float, keep_s: float = 0.0, only: tuple[str, ...] = (), slack: float = 0.0
) -> list[Verdict]:
    """One run and its verdicts. Raises: NoCompiler, Unavailable."""
    with prepared(folder, length_s) as run:
        play(run, length_s)
        window, truth = told(run)
        found = verdicts(truth, run.prometheus.url, window, only, slack)
        if keep_s:
            print_table(found)
            print(f"\n{run.prometheus.url} from {run.begin:.0f} to {run.end:.0f}, kept for {keep_s:.0f} s", flush=True)
            time.sleep(keep_s)
        return found


def told(run: Run) -> tuple[Window, Truth]:
    window = Window(run.begin, run.end, ASKED_AS_S)
    driver, watch = run.driver, run.watch
    truth = Truth(
        run.begin, run.end, driver.gpus, driver.holds, driver.lost, driver.xids, driver.stray, watch.jobs, watch.pages,
        run.scrape_s, 4 * ASKED_AS_S, window.step_s,
    )  # fmt: skip
    return window, truth


def print_table(found: list[Verdict]) -> None:
    print("\n| dashboard | panel | shown | computed | points | ok |\n|---|---|---|---|---|---|")
    for one in found:
        ok = ("yes" if one.points else f"empty: {one.why}") if one.ok else f"**NO**: {one.why}"
        where = one.dashboard.removeprefix("stoker-")
        print(f"| {where} | {one.panel} | {one.shown} | {one.computed} | {one.points} | {ok} |")
    points, good = sum(one.points for one in found), sum(one.ok for one in found)
    print(f"\n{good} of {len(found)} panels show what was computed ({points} points)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=float, default=600.0, help="seconds of the run")
    parser.add_argument("--keep", type=float, default=0.0, help="seconds for which all goes on afterwards")
    parser.add_argument("--only", action="append", default=[], help="title of a panel")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stoker-dashboards-") as folder:
        found = checked(Path(folder), asked.length, asked.keep, tuple(asked.only))
    if not asked.keep:
        print_table(found)
    return 0 if all(one.ok for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
