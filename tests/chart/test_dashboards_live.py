"""Every query of every dashboard, asked of a real Prometheus that was given a story (`sample_cluster`): two
operators that take turns and are not scraped for a while, exporters that are restarted, a job of two attempts, GPUs
without SM activity, one lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.dashboard_queries import Prometheus, Questions, Window, panels
from tests.support.testbed.errors import Unavailable
from tools.chart import rendering

from . import sample_cluster as sample

pytestmark = pytest.mark.slow
FOLDER = rendering.CHART / "files" / "dashboards"
CHOSEN = {"project": "language", "job": "pretrain-7b"}
HOURS = 1.0
WITHOUT_CLUSTER, WITH_CLUSTER = {}, {"cluster": "east"}
# Title of a stat → its one value, at the end of the story.
NUMBERS = [
    ("stoker-cluster", "GPUs", 20),
    ("stoker-cluster", "Allocated", 12),
    ("stoker-cluster", "Idle but allocated", 2),
    ("stoker-cluster", "Lost", 1),
    ("stoker-cluster", "Blind exporters", 1),
    ("stoker-cluster", "Alerts firing", 2),
    ("stoker-cluster", "Jobs running", 4),
    ("stoker-cluster", "Leading operators", 1),
    ("stoker-job", "Attempts", 2),
    ("stoker-job", "Stalled", 0),
    ("stoker-job", "Memory peak", 0.93),
]
# Title of a table → how many rows it has.
ROWS = [
    ("stoker-cluster", "Most wasteful jobs", 5),
    ("stoker-cluster", "Alerts", 2),
    ("stoker-gpu", "Holders", 12),
    ("stoker-gpu", "Hardware", 19),
    ("stoker-gpu", "XIDs", 1),
    ("stoker-job", "GPUs used", 8),
    ("stoker-queue", "GPU-hours by queue", 3),
    ("stoker-queue", "GPU-hours by user", 4),
    ("stoker-queue", "Job efficiency", 5),
    ("stoker-queue", "Oversized GPU requests", 1),
]


class Shown:
    """The answers that all dashboards got."""

    def __init__(self, reported: sample.ServedStory, cluster: str) -> None:
        self.book = reported.book
        window = Window(reported.start, reported.end, sample.STEP_S)
        wanted = {**CHOSEN, **({"cluster": cluster} if cluster else {})}
        self.answers: dict[tuple[str, str], dict[str, Any]] = {}
        ended = {"project": "speech", "job": "asr-finetune"}
        job = json.loads((FOLDER / "stoker-job.json").read_text())
        questions = Questions(job, Prometheus(reported.url), window, wanted | ended)
        answers = questions.answers()
        self.of_ended = {panel["title"] for panel in panels(job) if any(answers[panel["id"]].values())}
        """Panels that show something of a job that failed a while ago."""
        sliced = wanted | {"project": "speech", "job": "tiny-eval"}
        answers = Questions(job, questions.prometheus, window, sliced).answers()
        self.of_slices = {panel["title"]: answers[panel["id"]] for panel in panels(job)}
        """Of a job with a MIG device."""
        health = json.loads((FOLDER / "stoker-cluster.json").read_text())
        answers = Questions(health, questions.prometheus, window).answers()
        self.leading = next(answers[panel["id"]]["A"] for panel in panels(health) if "Leading" in panel["title"])
        """Of all clusters."""
        for path in sorted(FOLDER.glob("*.json")):
            questions = Questions(json.loads(path.read_text()), Prometheus(reported.url), window, wanted)
            answers = questions.answers()
            for panel in panels(questions.dashboard):
                self.answers[path.stem, panel["title"]] = answers[panel["id"]]
            self.answers[path.stem, "annotations"] = {"A": questions.annotations()}

    def number(self, uid: str, title: str) -> float:
        [one] = self.answers[uid, title]["A"]
        return float(one["value"][1])

    def rows(self, uid: str, title: str) -> list[dict[str, str]]:
        return [one["metric"] for one in self.answers[uid, title]["A"]]


@pytest.fixture(scope="module", params=[WITHOUT_CLUSTER, WITH_CLUSTER], ids=["no cluster label", "cluster label"])
def reported(request: pytest.FixtureRequest) -> Iterator[Shown | Unavailable]:
    try:
        with sample.prometheus(HOURS, **request.param) as found:
            yield Shown(found, request.param.get("cluster", ""))
    except Unavailable as error:
        yield error


@pytest.fixture
def shown(monitoring: None, reported: Shown | Unavailable) -> Shown:
    assert isinstance(reported, Shown)
    return reported


def test_every_panel_shows_something(shown: Shown) -> None:
    assert not [where for where, answers in shown.answers.items() if not any(answers.values())]


def test_numbers_are_those_of_the_story(shown: Shown) -> None:
    """Nothing twice, though exporters and operators have successors that say the same."""
    assert {(uid, title): shown.number(uid, title) for uid, title, _ in NUMBERS} == {
        (uid, title): pytest.approx(value) for uid, title, value in NUMBERS
    }


@pytest.mark.parametrize("title", ["SM activity by worker", "Busy by worker"])
def test_a_slice_is_as_active_as_it_is_for_itself(shown: Shown, title: str) -> None:
    [found] = [one for one in shown.of_slices[title]["A"] if one["metric"]["worker"] == "2"]
    values = [float(value) for _, value in found["values"]]
    assert values == pytest.approx([0.9] * len(values))


def test_two_clusters_with_a_leader_each_are_well(shown: Shown) -> None:
    assert [one["value"][1] for one in shown.leading] == ["1"]


def test_a_jobs_totals_are_its_counters_over_all_attempts(shown: Shown) -> None:
    [uid] = {job.uid for job in sample.JOBS if job.name == "pretrain-7b"}
    allocated = shown.book.total("stoker_job_gpu_allocated_seconds_total", job_uid=uid)
    idle = shown.book.total("stoker_job_gpu_idle_seconds_total", job_uid=uid)
    joules = shown.book.total("stoker_job_gpu_energy_joules_total", job_uid=uid)
    sm = shown.book.total("stoker_job_gpu_sm_active_seconds_total", job_uid=uid)
    assert shown.number("stoker-job", "GPU-hours") == pytest.approx(allocated / 3600)
    assert shown.number("stoker-job", "Cost") == pytest.approx(allocated / 3600 * sample.H200.price)
    assert shown.number("stoker-job", "Energy") == pytest.approx(joules)
    assert shown.number("stoker-job", "SM activity") == pytest.approx(sm / allocated)
    assert shown.number("stoker-job", "Idle") == pytest.approx(idle / allocated)


def test_an_ended_job_keeps_its_figures(shown: Shown) -> None:
    tiles = {"Attempts", "Progress", "Last step", "Stalled", "Last checkpoint", "Failures", "GPU-hours", "Idle"}
    assert tiles | {"SM activity", "Energy", "Samples / joule", "Memory peak", "Cost"} <= shown.of_ended


def test_criticals_are_on_top(shown: Shown) -> None:
    pages = [(one["metric"]["severity"], one["value"][1]) for one in shown.answers["stoker-cluster", "Alerts"]["A"]]
    assert pages and all((value == "0") is (severity == "warning") for severity, value in pages)


def test_what_was_spent_by_queue_is_what_jobs_had(shown: Shown) -> None:
    """`increase` is an estimate: within 3 % over an hour, restarts of exporters included."""
    held = {
        one["metric"]["queue"]: float(one["value"][1])
        for one in shown.answers["stoker-queue", "GPU-hours by queue"]["A"]
    }
    for queue in ("research", "production", "default"):
        uids = [job.uid for job in sample.JOBS if job.queue == queue]
        story = sum(shown.book.total("stoker_job_gpu_allocated_seconds_total", job_uid=uid) for uid in uids) / 3600
        assert held[queue] == pytest.approx(story, rel=0.03)


def test_tables_have_a_row_for_each(shown: Shown) -> None:
    assert {(uid, title): len(shown.rows(uid, title)) for uid, title, _ in ROWS} == {
        (uid, title): rows for uid, title, rows in ROWS
    }


def test_modes_are_shown_and_which_changes_with_a_reset(shown: Shown) -> None:
    answers = shown.answers["stoker-gpu", "Memory and fabric"]
    ecc, mig, persistence, changes = (
        {(one["metric"]["node"], one["metric"]["gpu"]) for one in answers[column] if one["value"][1] == "1"}
        for column in "EFGH"
    )
    assert len(ecc) == len(persistence) == 19 and mig == {("gpu-a-01", "2")} and changes == {("gpu-h-01", "0")}


def test_owners_have_names(shown: Shown) -> None:
    rows = shown.rows("stoker-gpu", "Holders")
    assert {(row["job_name"], row["user"], row["queue"]) for row in rows} == {
        (job.name, job.user, job.queue) for job in sample.JOBS if job.runs[-1].end > 1
    }


def test_attempts_that_ended_are_counted_once_each(shown: Shown) -> None:
    found = shown.answers["stoker-queue", "Attempts ended, by category"]["A"]
    counts = {one["metric"]["category"]: sum(float(value) for _, value in one["values"]) for one in found}
    assert counts == {"Interrupted": 1, "OutOfMemory": 1}


@pytest.mark.parametrize(
    ("title", "name", "unit"),
    [
        ("GPUs reclaimed and preempted, by queue", "stoker_preempted_gpus_total", 1),
        ("GPU-hours lost to preemption, by queue", "stoker_preempted_gpu_seconds_lost_total", 3600),
    ],
)
def test_what_was_preempted_is_shown_once_whatever_is_scraped(shown: Shown, title: str, name: str, unit: float) -> None:
    found = shown.answers["stoker-queue", title]["A"]
    assert len(found) == 6
    for one in found:
        story = shown.book.total(name, **one["metric"]) / unit
        assert sum(float(value) for _, value in one["values"]) == pytest.approx(story, rel=0.03), one["metric"]


def test_failures_and_preemptions_are_marked(shown: Shown) -> None:
    """Though each was the first of its kind, and so made its series."""
    assert sorted(one["color"] for one in shown.answers["stoker-cluster", "annotations"]["A"]) == ["orange", "red"]
    assert len(shown.answers["stoker-job", "annotations"]["A"]) == 2  # two attempts began
