"""What `stoker-cluster` has to show of Stoker itself: by REST where that tells, else by its own page, read beside."""

from __future__ import annotations

import shutil
from collections import Counter

from stoker.spec.job import Phase

from .course import Course
from .figures import Figure, between, counted, exactly, gauge
from .panels import EMPTY, Figures, one, panel
from .panels_cluster import CLUSTER
from .panels_queue import ends, per_step
from .truth import Truth

EMPTY[CLUSTER, "Api: open streams"] = "nobody followed a log"
EMPTY[CLUSTER, "Requests to the API server"] = "`stoker up` has no API server"
EMPTY[CLUSTER, "API server refusals"] = "`stoker up` has no API server"


def _told(truth: Truth, name: str, label: str, scale: float = 1.0) -> dict[str, Figure]:
    page = truth.pages["api"]
    return {
        value: counted(page.course(name, **{label: value}), truth.window_s, scale)
        for value in page.values(name, label)
        if value
    }


def _gauge(truth: Truth, name: str, **wanted: str) -> Figure:
    return gauge(Course(truth.pages["api"].course(name, **wanted)), wide=1e-6)


@panel(CLUSTER, "Leading operators")
def _leads(truth: Truth) -> Figures:
    return one(exactly(1.0))


@panel(CLUSTER, "Unreadable jobs", "Watch staleness", "Startable, not started")
def _zero(truth: Truth) -> Figures:
    return one(exactly(0.0))


@panel(CLUSTER, "Fullest disk")
def _disk(truth: Truth) -> Figures:
    used = shutil.disk_usage("/tmp")
    return one(exactly(used.used / (used.used + used.free), 0.03))


@panel(CLUSTER, "Oldest exporter poll")
def _poll(truth: Truth) -> Figures:
    """Since a GPU was lost no poll has read every one."""
    ago = truth.end - min(truth.lost.values(), default=truth.end - 1)
    return one(between(ago - 2, ago, ago + 4))


@panel(CLUSTER, "Jobs by phase")
def _phases(truth: Truth) -> Figures:
    def course(phase: Phase) -> Course:
        return truth.counts(lambda job: job.status.phase is phase)

    return {"A": {str(phase): gauge(course(phase), moments=truth.changes()) for phase in Phase}}


@panel(CLUSTER, "Attempts started")
def _starts(truth: Truth) -> Figures:
    """By REST: the sum of all jobs' attempts."""
    points = [(at, float(sum(job.status.attempt for job in jobs.values()))) for at, jobs in truth.jobs]
    return {"A": {"starts": counted(points, truth.window_s, 60)}}


@panel(CLUSTER, "Reconcile queue")
def _depth(truth: Truth) -> Figures:
    return {"A": {"waiting": Figure(lambda _: (0.0, 0.0, float(len(truth.jobs[-1][1]))), whole=99.0)}}


@panel(CLUSTER, "Reconcile errors")
def _errors(truth: Truth) -> Figures:
    return {"A": {"errors": exactly(0.0)}}


@panel(CLUSTER, "Requests to the API server")
def _requests(truth: Truth) -> Figures:
    return {"A": {}}


@panel(CLUSTER, "API server refusals")
def _refused(truth: Truth) -> Figures:
    return {"A": {"refused": exactly(0.0)}}


@panel(CLUSTER, "Scheduling pass and reconcile, p95")
def _passes(truth: Truth) -> Figures:
    """Between the bounds of the buckets into which all of the run fell."""
    return {
        "A": {"pass": _fell(truth, "stoker_operator_pass_seconds")},
        "B": {"reconcile": _fell(truth, "stoker_operator_reconcile_seconds")},
    }


def _fell(truth: Truth, name: str) -> Figure:
    page = truth.pages["api"]
    bounds = sorted((one for one in page.values(f"{name}_bucket", "le") if one), key=float)
    counts = [page.last(f"{name}_bucket", le=one) for one in bounds]
    fell = [i for i, count in enumerate(counts) if count > (counts[i - 1] if i else 0)]
    high = next((float(one) for one in reversed(bounds[: fell[-1] + 1]) if one != "+Inf"), 0.0)
    mean = page.last(f"{name}_sum") / page.last(f"{name}_count")
    low = float(bounds[fell[0] - 1]) if fell[0] else 0.0
    return Figure(lambda _: (low, mean, high), lambda _: False, whole=99.0)


@panel(CLUSTER, "Decisions")
def _decisions(truth: Truth) -> Figures:
    """In each step of the graph, by Stoker's own page."""
    page, name = truth.pages["api"], "stoker_operator_decisions_total"
    codes = page.values(name, "code") - {""}
    return {"A": {code: per_step(truth, Course(page.course(name, code=code))) for code in codes}}


@panel(CLUSTER, "Cached objects")
def _cached(truth: Truth) -> Figures:
    kinds = truth.pages["api"].values("stoker_operator_cached_objects", "kind") - {""}
    return {"A": {kind: _gauge(truth, "stoker_operator_cached_objects", kind=kind) for kind in kinds}}


@panel(CLUSTER, "Api: requests by status")
def _codes(truth: Truth) -> Figures:
    return {"A": _told(truth, "stoker_api_request_seconds_count", "code")}


@panel(CLUSTER, "Api: time to first byte, p99")
def _latency(truth: Truth) -> Figures:
    return {"A": {"p99": _fell(truth, "stoker_api_request_seconds")}}


@panel(CLUSTER, "Api: open streams")
def _streams(truth: Truth) -> Figures:
    kinds = truth.pages["api"].values("stoker_api_streams", "kind") - {""}
    return {"A": {kind: _gauge(truth, "stoker_api_streams", kind=kind) for kind in kinds}}


@panel(CLUSTER, "Api: log bytes received")
def _logs(truth: Truth) -> Figures:
    return {"A": {"logs": counted(truth.pages["api"].course("stoker_api_log_bytes_total"), truth.window_s)}}


@panel(CLUSTER, "Api: progress reports")
def _reports(truth: Truth) -> Figures:
    return {"A": _told(truth, "stoker_api_progress_reports_total", "outcome")}


@panel(CLUSTER, "Exporters: poll time")
def _poll_time(truth: Truth) -> Figures:
    course = Course(truth.pages["exporter"].course("stoker_exporter_collect_seconds"))
    low, high = course.bounds(truth.begin, truth.end)
    return {
        "A": {
            "local": Figure(lambda _: (0.0, course.mean(truth.begin, truth.end), 3 * high + 0.05 + 0 * low), whole=99.0)
        }
    }


def attempts_ended(truth: Truth) -> Counter[str]:
    """How many attempts ended how; REST."""
    return Counter(
        {
            legend: len(moments)
            for legend, moments in ends(truth, lambda category, intent: f"{category} {intent}").items()
        }
    )
