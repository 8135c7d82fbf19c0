"""On a real `stoker up` with a real Prometheus: every panel answers; alerts come and go by a real Alertmanager.

What panels compute is proved on a made-up cluster of known figures (tests/chart/test_dashboards_live.py), what counters
hold by `tools/verify/accounting.py`; `tools/verify/alerts.py` takes every alert to firing and back.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.spec.recipes import resolve
from tests.support.dashboard_queries import Prometheus as Queried
from tests.support.dashboard_queries import Questions, Window, panels
from tests.support.harness import running, until
from tests.support.nvml_scenario import GPU_IS_LOST, NoCompiler, Scenario
from tests.support.testbed.monitoring import Prometheus
from tools.verify import alerts
from tools.verify.alert_stages import ROOT, rules, scrape_configs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GIB = 1 << 30
BUSY, LOST, MIG, STRAY, GPUS = 0, 5, 6, 7, 8
SCRAPE_S = 1.0
SHOWN = {"project": "default", "job": "digits-gang"}
EMPTY = {
    "Requests to the API server": "`stoker up` has none",
    "API server refusals": "`stoker up` has none",
    "Api: open streams": "no log is followed",
    "Oversized GPU requests": "no job has had a whole GPU-hour",
    "GPUs guaranteed and borrowed, by queue": "no queue has a guarantee",
}
"""Panels without a series in such a run, and why."""


@pytest.fixture
def folder(tmp_path: Path, monitoring: None) -> Path:
    return tmp_path


def hardware(folder: Path) -> Scenario:
    """Eight GPUs: one works, one is lost, one is split, one has a process of no job's. Raises: NoCompiler."""
    folder.mkdir()
    scenario = Scenario(folder)
    works = {"busy": 90, "sm": 60, "watts": 640.0, "used": 60 * GIB, "ecc_uncorrected_volatile": 2, "recovery": 4}
    for number in range(GPUS):
        gpu = scenario.add_gpu(margin=54, **(works if number == BUSY else {}))
        if number == MIG:
            gpu.add_mig(slices=3, memory=71 * GIB, used=40 * GIB, sm=44)
    scenario.gpus[STRAY].step(0.0, used=9 * GIB, processes=[(1, 9 * GIB, 0.0)])
    return scenario.write()


def strike(scenario: Scenario) -> None:
    scenario.fault(gpu=LOST, code=GPU_IS_LOST, begin=time.time())
    scenario.xid(BUSY, time.time() + 0.5, 94)
    scenario.write()


def panels_without_a_series(url: str, window: Window) -> set[str]:
    found = set()
    for path in (ROOT / "helm" / "stoker" / "files" / "dashboards").glob("*.json"):
        questions = Questions(json.loads(path.read_text()), Queried(url), window, SHOWN)
        answers = questions.answers()
        found |= {one["title"] for one in panels(questions.dashboard) if not any(answers[one["id"]].values())}
    return found


def on_the_cpu(recipe: dict[str, Any]) -> list[str]:
    """Our trainer as a command: the GPUs are made up, and a recipe trains on the GPU it was promised or not at all."""
    config = {
        "recipe": "image-classification",
        "config": resolve("image-classification", recipe),
        "precision": "fp32",
        "stop": {"maxSteps": None, "target": None, "patience": None},
        "checkpoint": {"everySeconds": 2.0, "keep": 2},
    }
    given = ["STOKER_SIMULATED_GPUS=1", f"STOKER_TRAINER_CONFIG={json.dumps(config)}"]
    return ["env", *given, sys.executable, "-m", "stoker_trainer"]


@pytest.mark.torch
def test_every_panel_answers(folder: Path) -> None:
    try:
        scenario = hardware(folder / "nvml")
    except NoCompiler as error:
        pytest.skip(str(error))
    trains = {
        "workers": 2, "gpusPerWorker": 1, "cpu": "1", "memory": "1Gi",
        "trainer": {"command": on_the_cpu({"data": "mnist5k", "epochs": 10_000}), "workingDir": "/"},
    }  # fmt: skip
    small = {"gpusPerWorker": 1, "cpu": "100m", "memory": "64Mi"}
    fails = {"trainer": {"command": [sys.executable, "-c", "raise SystemExit(3)"], "workingDir": "/"}, **small}
    options = ("--cpus", "16", "--memory", "16Gi", "--gpu-price", "h200=3.5", "--no-burn-in")
    with (
        running(folder / "data", *options, env=scenario.env()) as server,
        server.client() as client,
        Prometheus(scrape=scrape_configs(server, SCRAPE_S), rules=rules(), interval_s=SCRAPE_S) as prometheus,
    ):
        prometheus.until(f"count(stoker_gpu_up) == {GPUS} and on () stoker_operator_leader == 1", 60)
        begin = time.time() - 60  # a range longer than nothing
        client.put_queue("research", {"limit": {"gpus": 4}})
        client.submit({"queue": "research", **trains}, name="digits-gang")
        client.submit(fails, name="fails")
        client.submit({**fails, "gpusPerWorker": GPUS}, name="waits")
        strike(scenario)
        seen: set[str] = set()

        def all_answer() -> bool:
            seen.clear()
            seen.update(panels_without_a_series(prometheus.url, Window(begin, time.time(), SCRAPE_S)))
            return seen == set(EMPTY)

        try:
            until(all_answer, "a series in every panel", 120, 2.0)
        except TimeoutError:
            assert seen == set(EMPTY)


def test_alerts_of_hardware_fire_and_are_resolved(folder: Path) -> None:
    try:
        done = alerts.checked(folder, only=("hardware",))
    except NoCompiler as error:
        pytest.skip(str(error))
    assert len(done) == 11
    assert [case.alert for case in done if case.fired_s < 0 or case.resolved_s < 0] == []
