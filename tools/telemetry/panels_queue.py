"""What `stoker-queue` has to show, all queues chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.spec.job import Phase, TrainingJob

from .course import Course, combined
from .figures import EARLY_S, SLOP_S, Bounds, Figure, exactly, gauge, quantile, rate
from .panels import EMPTY, Figures, one, panel
from .panels_cluster import BASE_J, active, increased, scaled, waited
from .story import PRICE, QUEUES
from .truth import Truth, user

QUEUE = "stoker-queue"
PLACED = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


@panel(QUEUE, "Jobs queued")
def _queued(truth: Truth) -> Figures:
    return one(gauge(truth.counts(lambda job: job.status.phase is Phase.QUEUED), moments=truth.changes()))


@panel(QUEUE, "Wait, median")
def _wait(truth: Truth) -> Figures:
    return one(waited(truth, 0.5))


@panel(QUEUE, "Wait, p90")
def _wait_90(truth: Truth) -> Figures:
    return one(waited(truth, 0.9))


@panel(QUEUE, "Wait, p99")
def _wait_99(truth: Truth) -> Figures:
    return one(waited(truth, 0.99))


@panel(QUEUE, "GPU-hours")
def _gpu_hours(truth: Truth) -> Figures:
    return one(increased(truth, truth.held(), 1 / 3600))


@panel(QUEUE, "Wasted")
def _wasted(truth: Truth) -> Figures:
    return one(
        exactly(
            truth.sum(truth.idle_of()) / truth.sum(truth.held()), 3.5 * truth.spans() / truth.sum(truth.held()), 0.05
        )
    )


@panel(QUEUE, "Energy")
def _energy(truth: Truth) -> Figures:
    return one(increased(truth, truth.used("watts"), 1 / BASE_J, each=400))


@panel(QUEUE, "Cost")
def _cost(truth: Truth) -> Figures:
    return one(increased(truth, truth.held(), PRICE / 3600))


@panel(QUEUE, "GPUs allocated and requested, by queue")
def _held_and_wanted(truth: Truth) -> Figures:
    def gpus(queue: str, phases: Iterable[Phase]) -> Figure:
        def wanted(job: TrainingJob) -> bool:
            return job.spec.queue == queue and job.status.phase in phases

        steps = [
            (at, float(sum(job.spec.total_gpus for job in jobs.values() if wanted(job)))) for at, jobs in truth.jobs
        ]
        return gauge(Course(steps), moments=[at for at in truth.changes() for _ in range(2)])

    queues = ("default", *QUEUES)
    return {
        "A": {queue: gpus(queue, PLACED) for queue in queues},
        "B": {f"{queue} waits for": gpus(queue, (Phase.QUEUED,)) for queue in queues},
    }


@panel(QUEUE, "Quota in use")
def _quota(truth: Truth) -> Figures:
    limit = QUEUES["research"]["limit"]["gpus"]
    held = [job for job in truth.jobs[-1][1].values() if job.spec.queue == "research" and job.status.phase in PLACED]
    return {"A": {"research": exactly(sum(job.spec.total_gpus for job in held) / limit)}}


@panel(QUEUE, "Why jobs wait")
def _why(truth: Truth) -> Figures:
    reasons = {job.status.reason for _, jobs in truth.jobs for job in jobs.values() if job.status.phase is Phase.QUEUED}

    def because(reason: str) -> Course:
        return truth.counts(lambda job: job.status.phase is Phase.QUEUED and job.status.reason == reason)

    return {"A": {str(reason): gauge(because(reason), moments=truth.changes()) for reason in reasons}}


def ends(truth: Truth, what: Callable[[str, str], str]) -> dict[str, list[float]]:
    """Legend → moments at which attempts ended so."""
    found: dict[str, list[float]] = {}
    for job in truth.jobs[-1][1].values():
        for attempt in job.status.attempts:
            legend = what(str(attempt.category or "Done"), str(attempt.intent))
            found.setdefault(legend, []).append(attempt.ended_at.timestamp())
    return found


@panel(QUEUE, "Attempts ended, by category")
def _ended(truth: Truth) -> Figures:
    """In each step of the graph: as many as ended there, give or take one step."""
    found = {}
    for legend, moments in ends(truth, lambda category, intent: f"{category} {intent}").items():
        course = Course([(at, float(number + 1)) for number, at in enumerate(sorted(moments))])
        found[legend] = per_step(truth, course)
    return {"A": found}


def per_step(truth: Truth, course: Course) -> Figure:
    """How much a counter rose in each step of the graph."""

    def at(moment: float) -> Bounds:
        before = moment - truth.step_s
        low = course.at(moment - SLOP_S) - course.at(before + EARLY_S)
        return (
            max(0.0, low),
            course.at(moment) - course.at(before),
            course.at(moment + EARLY_S) - course.at(before - SLOP_S),
        )

    return Figure(at, lambda _: False, whole=2.0)  # few events: each is held to its step


@panel(QUEUE, "Wasted GPUs, by queue")
def _wasted_gpus(truth: Truth) -> Figures:
    def idle(queue: str) -> Course:
        return combined([truth.idle_of(name) for name in truth.names(queue=queue)] or [Course()])

    return {"A": {queue: rate(idle(queue), truth.window_s, wide=0.15) for queue in ("default", *QUEUES)}}


def columns(truth: Truth, groups: dict[str, list[str]]) -> Figures:
    found: dict[str, dict[str, Figure]] = {ref: {} for ref in "ABCDEF"}
    for key, names in groups.items():
        held = truth.held(*names)
        found["A"][key] = increased(truth, held, 1 / 3600, *names)
        found["B"][key] = increased(truth, scaled(truth.used("busy", *names), 0.01), 1 / 3600, *names)
        found["C"][key] = increased(truth, truth.idle_of(*names), 1 / 3600, *names)
        found["D"][key] = active(truth, *names)
        found["E"][key] = increased(truth, truth.used("watts", *names), 1 / BASE_J, *names, each=400)
        found["F"][key] = increased(truth, held, PRICE / 3600, *names)
    return found


@panel(QUEUE, "GPU-hours by queue")
def _by_queue(truth: Truth) -> Figures:
    return columns(truth, {queue: truth.names(queue=queue) for queue in ("default", *QUEUES)})


@panel(QUEUE, "GPU-hours by user")
def _by_user(truth: Truth) -> Figures:
    groups: dict[str, list[str]] = {}
    for name in truth.names():
        job = truth.job(name)
        groups.setdefault(f"{user(job)}/{job.spec.queue}", []).append(name)
    return columns(truth, groups)


@panel(QUEUE, "Job efficiency")
def _efficiency(truth: Truth) -> Figures:
    return columns(truth, {name: [name] for name in truth.names()})


@panel(QUEUE, "Oversized GPU requests")
def _too_large(truth: Truth) -> Figures:
    found: dict[str, dict[str, Figure]] = {"A": {}, "B": {}, "C": {}}
    for name in truth.names():
        held = truth.sum(truth.held(name))
        sm = truth.sum(truth.used("sm", name)) / 100 / max(1.0, held)
        if held > 3600 and (truth.peak(name) < 0.25 or sm < 0.3):
            found["A"][name], found["B"][name] = exactly(truth.peak(name)), active(truth, name)
            found["C"][name] = increased(truth, truth.held(name), 1 / 3600, name)
    return found


@panel(QUEUE, "Wait by queue, p90")
def _wait_by_queue(truth: Truth) -> Figures:
    """Each wait that is shown lies between the shortest and the longest of the queue's, bucket by bucket."""
    bounds = sorted(float(one) for one in truth.pages["api"].values("stoker_queue_wait_seconds_bucket", "le") if one)
    found = {}
    for queue in ("default", *QUEUES):
        waits = truth.waits(queue)
        if waits:
            low, high = quantile(0.5, [max(0.0, min(waits) - 0.2)], bounds), quantile(1.0, [max(waits) + 0.2], bounds)
            found[queue] = Figure(lambda _, b=(low * 0, high, high): b, lambda _: False, whole=99.0)  # type: ignore[misc]
    return {"A": found}


EMPTY[QUEUE, "Oversized GPU requests"] = "no job of this run has had a whole GPU-hour"
