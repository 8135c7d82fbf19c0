"""Every alert of the rules fires once and is resolved once: real Prometheus, Alertmanager, webhook.

    python -m tools.verify.alerts [--only STAGE]

Most causes are real ones on a `stoker up` under the fake NVML, with the exporter it runs and jobs that misbehave; what
can't be caused on one machine is a series that we serve, and is named so in the table. The rules are the chart's, in a
copy in which an hour lasts 40 s (`alert_stages`). Exit code 1 if an alert did not come or did not go.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.support.harness import running
from tests.support.nvml_scenario import Scenario
from tools.verify.alert_causes import GPUS, World
from tools.verify.alert_stages import Case, Served, rules, scrape_configs, stage, watching

DISK = "128m"


def checked(folder: Path, only: tuple[str, ...] = ()) -> list[Case]:
    """Every case of the stages with its times. Raises: NoCompiler, Unavailable."""
    (folder / "nvml").mkdir()
    scenario = Scenario(folder / "nvml")
    for _ in range(GPUS):
        scenario.add_gpu()
    scenario.write()
    done: list[Case] = []
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(own_disk(folder / "disk"))
        data = (disk or folder) / "data"
        server = stack.enter_context(
            running(data, "--cpus", "8", "--memory", "4Gi", "--no-burn-in", env=scenario.env())
        )
        client, served = stack.enter_context(server.client()), stack.enter_context(Served().listening())
        world = World(server, client, scenario, served, folder, disk)
        scrape = [*scrape_configs(server, 1.0), served.target()]
        prometheus, hook = stack.enter_context(watching(folder, scrape))
        prometheus.until(f"count(stoker_gpu_up) == {GPUS} and on () sum(stoker_operator_leader) == 1", 60)
        for name, cases in world.stages():
            if only and name not in only:
                continue
            print(f"{name}: {', '.join(case.alert for case in cases)}", flush=True)
            stage(hook, cases, lambda text: print(f"  {text}", flush=True))
            done += cases
    return done


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[Path | None]:
    """A small disk in memory; None where we may not mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)],
        capture_output=True,
        timeout=30,
        check=False,
    )
    if mounted.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, timeout=30, check=False)


def names() -> set[str]:
    """Of all alerts that the chart has."""
    found = (
        rule for path in rules() for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
    )
    return {rule["alert"] for rule in found if "alert" in rule}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a stage's name")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stoker-alerts-") as folder:
        done = checked(Path(folder), tuple(asked.only))
    print("\n| alert | caused by | fired after | resolved after |\n|---|---|---|---|")
    for case in done:
        times = (f"{one:.0f} s" if one >= 0 else "**never**" for one in (case.fired_s, case.resolved_s))
        print(f"| {case.alert} | {'' if case.real else 'served: '}{case.cause} | {' | '.join(times)} |")
    missing = names() - {case.alert for case in done} if not asked.only else set()
    good = [case for case in done if case.fired_s >= 0 and case.resolved_s >= 0]
    real = sum(case.real for case in good)
    print(
        f"\n{len(good)} of {len(names())} alerts fired and were resolved, {real} of them by a real cause,"
        f" on {os.cpu_count()} cores"
    )
    if missing:
        print(f"not tried: {', '.join(sorted(missing))}")
    return 0 if len(good) == len(done) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
