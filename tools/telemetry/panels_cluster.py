"""What `stoker-cluster` has to show, without Stoker's own health (`panels_health`)."""

from __future__ import annotations

from stoker.spec.job import Phase
from tests.support.nvml_scenario import H200_BYTES

from .course import Course, combined
from .figures import Figure, between, exactly, gauge, quantile, rate
from .panels import Figures, one, panel
from .story import GPUS, MIG_GPU, PRICE
from .truth import ALWAYS, REASONS, Truth

CLUSTER = "stoker-cluster"
BASE_J = 3.6e6


def now(course: Course) -> Figures:
    return one(gauge(course))


def increased(
    truth: Truth, course: Course, scale: float = 1.0, *jobs: str, each: float = 1.0, spans: int | None = None
) -> Figure:
    """Over the time shown, of these jobs. Of each worker's GPU what was before its first scrape is no increase.

    each: the most that one GPU adds in a second.
    """
    spans = truth.spans(*jobs) if spans is None else spans
    return exactly(truth.sum(course) * scale, (3 + (truth.scrape_s + 1.5) * spans) * each * scale, 0.02)


def place(gpu: int) -> str:
    return f"local/{gpu}"


@panel(CLUSTER, "GPUs")
def _gpus(truth: Truth) -> Figures:
    return one(exactly(GPUS))


@panel(CLUSTER, "Allocated")
def _allocated(truth: Truth) -> Figures:
    return now(truth.held())


@panel(CLUSTER, "Busy")
def _busy(truth: Truth) -> Figures:
    return one(rate(_unit(truth.full("busy")), truth.window_s))


@panel(CLUSTER, "Idle but allocated")
def _idle(truth: Truth) -> Figures:
    """Held and idle throughout the last minute."""
    idle = [_minutes(truth, gpu) for gpu in range(GPUS)]
    return one(between(sum(low for low, _ in idle), sum(low for low, _ in idle), sum(high for _, high in idle)))


def _minutes(truth: Truth, gpu: int) -> tuple[float, float]:
    classes = [truth.idle(name, gpu) for name in ("no_process", "no_activity", "low_activity")]
    course = combined([combined(classes), truth.had(gpu)], lambda values: float(values[0] * values[1] > 0))
    return course.bounds(truth.end - 66, truth.end)[0], course.bounds(truth.end - 56, truth.end - 5)[0]


@panel(CLUSTER, "Lost")
def _lost(truth: Truth) -> Figures:
    return one(exactly(len(truth.lost)))


@panel(CLUSTER, "Goodput")
def _goodput(truth: Truth) -> Figures:
    """A lost GPU's time counts as well: it can't work."""
    work = truth.sum(_unit(truth.all("sm")))
    return one(exactly(work / (GPUS * (truth.end - truth.begin)), 0.005, 0.03))


@panel(CLUSTER, "Wasted GPU-hours")
def _wasted(truth: Truth) -> Figures:
    return one(increased(truth, truth.idle_of(), 1 / 3600))


@panel(CLUSTER, "Power")
def _power(truth: Truth) -> Figures:
    return now(truth.all("watts"))


@panel(CLUSTER, "Energy")
def _energy(truth: Truth) -> Figures:
    return one(increased(truth, truth.all("watts"), 1 / BASE_J, each=700 * GPUS, spans=0))


@panel(CLUSTER, "Cost")
def _cost(truth: Truth) -> Figures:
    return one(increased(truth, truth.held(), PRICE / 3600))


@panel(CLUSTER, "Jobs running")
def _running(truth: Truth) -> Figures:
    return one(gauge(truth.counts(lambda job: job.status.phase is Phase.RUNNING), moments=truth.changes()))


@panel(CLUSTER, "Jobs queued")
def _queued(truth: Truth) -> Figures:
    return one(gauge(truth.counts(lambda job: job.status.phase is Phase.QUEUED), moments=truth.changes()))


def waited(truth: Truth, share: float) -> Figure:
    """In the histogram's buckets; a wait near a bound may lie in the next one, two at the run's begin be no rise."""
    bounds = sorted(float(one) for one in truth.pages["api"].values("stoker_queue_wait_seconds_bucket", "le") if one)
    waits = sorted(truth.waits())
    low = quantile(share, [max(0.0, wait - 0.15) for wait in waits[:-2]], bounds)
    high = quantile(share, [wait + 0.15 for wait in waits[2:]], bounds)
    return between(0.97 * low, quantile(share, waits, bounds), 1.03 * high)


@panel(CLUSTER, "Wait, median")
def _wait(truth: Truth) -> Figures:
    return one(waited(truth, 0.5))


@panel(CLUSTER, "Wait, p95")
def _long_wait(truth: Truth) -> Figures:
    return one(waited(truth, 0.95))


@panel(CLUSTER, "Blind exporters")
def _blind(truth: Truth) -> Figures:
    """A poll that misses a lost GPU did not read every one."""
    return one(exactly(float(bool(truth.lost))))


@panel(CLUSTER, "GPUs in use")
def _in_use(truth: Truth) -> Figures:
    return {
        "A": {"there": gauge(Course([(0.0, float(GPUS))]))},
        "B": {"allocated": gauge(truth.held())},
        "C": {"busy": rate(_unit(truth.full("busy")), truth.window_s)},
        "D": {"SMs active": rate(_unit(truth.all("sm")), truth.window_s)},
    }


@panel(CLUSTER, "Allocated GPUs by activity")
def _doing(truth: Truth) -> Figures:
    used = combined([truth.held(), truth.idle_of()], lambda values: values[0] - values[1])
    classes = ("no_process", "no_activity", "low_activity")
    return {
        "A": {"used": rate(used, truth.window_s, wide=0.5)},
        "B": {name: rate(truth.idle_class(name), truth.window_s, wide=0.25) for name in classes},
        "C": {"not observed": rate(Course(), truth.window_s, wide=0.4)},
    }


@panel(CLUSTER, "Power and limit")
def _limit(truth: Truth) -> Figures:
    return {"A": {"drawn": gauge(truth.all("watts"))}, "B": {"limit": gauge(truth.all("limit"))}}


@panel(CLUSTER, "Hottest GPUs")
def _hottest(truth: Truth) -> Figures:
    return {"A": {place(gpu): gauge(truth.value("temp", gpu)) for gpu in range(GPUS) if gpu not in truth.lost}}


@panel(CLUSTER, "Most throttled GPUs")
def _throttled(truth: Truth) -> Figures:
    def held_down(gpu: int) -> Course:
        return combined([truth.reason(name, gpu) for name in REASONS])

    return {"A": {place(gpu): rate(held_down(gpu), truth.window_s) for gpu in range(GPUS) if gpu not in truth.lost}}


@panel(CLUSTER, "Least free memory")
def _memory(truth: Truth) -> Figures:
    def share(gpu: int) -> Course:
        return scaled(truth.value("used", gpu), 1 / H200_BYTES)

    return {"A": {place(gpu): gauge(share(gpu)) for gpu in range(GPUS) if gpu not in truth.lost}}


@panel(CLUSTER, "Most wasteful jobs")
def _jobs(truth: Truth) -> Figures:
    found: dict[str, dict[str, Figure]] = {"A": {}, "B": {}, "C": {}}
    for name in truth.names():
        held = truth.held(name)
        found["A"][name] = increased(truth, truth.idle_of(name), 1 / 3600, name)
        found["B"][name] = increased(truth, held, 1 / 3600, name)
        found["C"][name] = active(truth, name)
    return found


def active(truth: Truth, *jobs: str) -> Figure:
    """SM activity over held time; of short jobs the ends weigh more."""
    held = truth.sum(truth.held(*jobs))
    spans = sum(1 for hold in truth.holds if hold.job in jobs)
    return exactly(truth.sum(_unit(truth.used("sm", *jobs))) / held, min(0.5, 1.5 * spans / held), 0.03)


@panel(CLUSTER, "Waiting jobs by queue")
def _by_queue(truth: Truth) -> Figures:
    queues = {job.spec.queue for job in truth.jobs[-1][1].values()}

    def waiting(queue: str) -> Course:
        return truth.counts(lambda job: job.status.phase is Phase.QUEUED and job.spec.queue == queue)

    return {"A": {queue: gauge(waiting(queue), moments=truth.changes()) for queue in queues}}


def _unit(course: Course) -> Course:
    return scaled(course, 0.01)


def scaled(course: Course, by: float) -> Course:
    return Course(zip(course.times, (value * by for value in course.values), strict=True))


__all__ = ["ALWAYS", "MIG_GPU", "active", "increased", "place", "scaled", "waited"]
