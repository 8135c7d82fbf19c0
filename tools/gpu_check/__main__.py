"""Runs the sections one after the other, each in a process of its own with a limit, and writes JSON and a table.

    python -m tools.gpu_check [--only NAME] [--out FOLDER]

Owns the order, the limits and the report. A section is a module with `measure()`, which returns its figures or
raises; a section that fails, crashes or hangs is reported with its error, and the next one goes on.
Exit code: 0, 1 where a section failed, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tools.gpu_check.environment import Environment, NoGpu, NoWheels, gpu_name, prepared
from tools.gpu_check.report import Report, Section

SECTIONS = {
    "trainer_tests": 200.0,
    "steps": 100.0,
    "update": 60.0,
    "fp8": 150.0,
    "batch": 180.0,
    "nvml": 60.0,
    "energy": 90.0,
    "pcie": 60.0,
    "burn_in": 60.0,
    "health": 150.0,
    "chain": 120.0,
    "exporter": 80.0,
}
"""Name of the module → the seconds it may take at most."""
TOTAL_S = 520.0
"""Of the 9 minutes the rest is for making the environment."""
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks on a real NVIDIA GPU.")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections; others of the report stay")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu-check", help="where the report goes")
    parser.add_argument("--without-gpu", action="store_true", help=argparse.SUPPRESS)  # does the check itself work?
    options = parser.parse_args()
    try:
        hardware = "no-gpu" if options.without_gpu else gpu_name()
    except NoGpu as error:
        print(error, file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        try:
            environment = stack.enter_context(prepared())
        except NoWheels as error:
            print(error, file=sys.stderr)
            return 2
        report = Report(hardware, environment.machine())
        if options.only:
            report.keep(options.out)
        ends = time.monotonic() + TOTAL_S
        for name in options.only or SECTIONS:
            section = run(name, environment, ends - time.monotonic())
            report.put(section)
            print(section.table(), flush=True)
            report.write(options.out)
    return int(any(section.error for section in report.sections))


def run(name: str, environment: Environment, left_s: float) -> Section:
    """The section's figures or its error; never raises for what the section does."""
    limit_s = min(SECTIONS[name], left_s)
    at = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}"
    if limit_s <= 0:
        return Section(name, at, 0.0, error="no time was left for it")
    began = time.monotonic()
    program = (
        "import json, sys, importlib; module = importlib.import_module('tools.gpu_check.' + sys.argv[1]);"
        "print('FIGURES ' + json.dumps(module.measure()))"
    )
    process = subprocess.Popen(
        [str(environment.python), "-c", program, name],
        cwd=ROOT, env=environment.variables(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, error = process.communicate(timeout=limit_s)[0], ""
    except subprocess.TimeoutExpired:
        error = f"stopped after {limit_s:.0f} s"
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    took_s = time.monotonic() - began
    lines = output.splitlines()
    figures = next((line.removeprefix("FIGURES ") for line in lines if line.startswith("FIGURES ")), None)
    if figures is None or process.returncode:
        last = "\n".join(lines[-15:])
        return Section(name, at, took_s, error=f"{error or f'exit {process.returncode}'}\n{last}".strip())
    return Section(name, at, took_s, json.loads(figures))


if __name__ == "__main__":
    sys.exit(main())
