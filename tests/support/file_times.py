"""pytest plugin: a run ends with its ten slowest files and what all took: `make test` has a budget (CONTRIBUTING).

Wall time is that of a file's set-ups, tests and clean-ups; CPU is that of the test process and of the children that
ended meanwhile. A fixture that several files share is counted where it was first asked for. Both come with the reports,
so they are right too where several processes ran the tests (pytest-xdist).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

SHOWN = 10
_BEGAN_AT = time.monotonic()
_cpu_before_s = 0.0


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_runtest_logstart() -> None:
    global _cpu_before_s
    _cpu_before_s = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    global _cpu_before_s
    report = yield
    report.cpu_s, _cpu_before_s = _cpu_s() - _cpu_before_s, _cpu_s()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    wall_s, cpu_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            file = report.nodeid.partition("::")[0]
            wall_s[file] += report.duration
            cpu_s[file] += getattr(report, "cpu_s", 0.0)
    if len(wall_s) <= 1:
        return
    terminalreporter.section(f"slowest of {len(wall_s)} files")
    took_s, all_cpu_s = time.monotonic() - _BEGAN_AT, _cpu_s()
    terminalreporter.write_line(f"{sum(wall_s.values()):8.1f} s {sum(cpu_s.values()):8.1f} s CPU  all files")
    for file in sorted(wall_s, key=wall_s.__getitem__, reverse=True)[:SHOWN]:
        terminalreporter.write_line(f"{wall_s[file]:8.1f} s {cpu_s[file]:8.1f} s CPU  {file}")
    terminalreporter.write_line(f"the run: {took_s / 60:.1f} minutes, {all_cpu_s:.0f} s CPU with servers and imports")
