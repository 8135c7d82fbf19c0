"""Dashboards show what a real run's own records say; alerts come and go by Alertmanager: the core of two scripts.

`tools/verify/dashboards.py` and `tools/verify/alerts.py` do the same for every panel and every alert.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nvml_scenario import NoCompiler
from tools.verify import alerts, dashboards

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LENGTH_S = 100.0
SLACK = 0.15
"""Other tests' processes may have the cores: the script says how exact the panels are, this that they are right."""
OF_HARDWARE_AND_JOBS = {
    "stoker-gpu": {
        *(
            "GPU up",
            "Recovery action",
            "XID errors",
            "Utilization, mean of selected GPUs",
            "Busy by GPU",
            "Memory",
        ),
        *(
            "Time by account",
            "Power",
            "Temperature",
            "SM clock",
            "NVLink",
            "Holders",
            "MIG devices",
            "Hardware",
        ),
    },
    "stoker-cluster": {
        "GPUs",
        "Lost",
        "Power",
        "Energy",
        "Cost",
        "GPUs in use",
        "Power and limit",
        "Most wasteful jobs",
    },
    "stoker-job": {
        "Attempts",
        "GPU-hours",
        "Energy",
        "Cost",
        "SM activity",
        "Memory peak",
        "Power",
        "GPUs used",
    },
    "stoker-queue": {"GPU-hours", "Energy", "Cost", "GPU-hours by queue", "GPU-hours by user", "Job efficiency"},
}
"""Panels whose figures come from the scenario's integrals and from who held what."""


@pytest.fixture
def folder(tmp_path: Path, monitoring: None) -> Path:
    return tmp_path


def test_panels_show_what_the_run_records_say(folder: Path) -> None:
    try:
        found = dashboards.checked(folder, LENGTH_S, slack=SLACK)
    except NoCompiler as error:
        pytest.skip(str(error))
    core = [one for one in found if one.panel in OF_HARDWARE_AND_JOBS[one.dashboard]]
    assert len(core) == sum(map(len, OF_HARDWARE_AND_JOBS.values()))
    assert [(one.dashboard, one.panel, one.why) for one in core if not one.ok] == []


def test_alerts_of_hardware_fire_and_are_resolved(folder: Path) -> None:
    try:
        done = alerts.checked(folder, only=("hardware",))
    except NoCompiler as error:
        pytest.skip(str(error))
    assert len(done) == 15
    assert [case.alert for case in done if case.fired_s < 0 or case.resolved_s < 0] == []
