"""What `stoker-job` has to show of the gang that trains. `JOB` is the job; for others `figures_of` gives the totals."""

from __future__ import annotations

from collections.abc import Callable

from stoker.spec.job import TrainingJob
from tests.support.nvml_scenario import H200_BYTES

from .course import Course, product
from .figures import Figure, between, counted, exactly, gauge, rate
from .panels import Figures, one, panel
from .panels_cluster import BASE_J, active, increased, scaled
from .story import PRICE
from .truth import REASONS, Truth

NAME = "stoker-job"
JOB = "digits-gang"


def newest(truth: Truth) -> TrainingJob:
    return truth.job(JOB)


def told(truth: Truth, name: str, **wanted: str) -> list[tuple[float, float]]:
    """A series of the trainer, as its own page said when it was read beside Prometheus."""
    return truth.pages[JOB].course(f"stoker_train_{name}", **wanted)


def read(truth: Truth, name: str, share: float = 0.01) -> Figure:
    points = told(truth, name)
    return gauge(Course(points), while_read(points), share=share)


def while_read(points: list[tuple[float, float]]) -> Course:
    return Course([(0.0, 0.0), (points[0][0], 1.0), (points[-1][0] + 60, 0.0)])


def _is_read(points: list[tuple[float, float]]) -> Callable[[float], bool]:
    course = while_read(points)
    return lambda moment: course.at(moment) > 0


@panel(NAME, "Phase")
def _phase(truth: Truth) -> Figures:
    return {"A": {str(newest(truth).status.phase): exactly(1.0)}}


@panel(NAME, "Attempts")
def _attempts(truth: Truth) -> Figures:
    return one(exactly(newest(truth).status.attempt))


@panel(NAME, "Progress")
def _progress(truth: Truth) -> Figures:
    progress = newest(truth).status.progress
    assert progress is not None and progress.total_steps
    return one(exactly(progress.step / progress.total_steps, 0.01, 0.05))


@panel(NAME, "Time left")
def _left(truth: Truth) -> Figures:
    return one(read(truth, "eta_seconds", 0.1))


@panel(NAME, "Time since last step")
def _since_step(truth: Truth) -> Figures:
    progress = newest(truth).status.progress
    assert progress is not None and progress.step_at
    ago = truth.end - progress.step_at
    return one(between(0.0, max(0.0, ago), max(0.0, ago) + 8))


@panel(NAME, "Stalled")
def _stalled(truth: Truth) -> Figures:
    return one(exactly(0.0))


def _saves(truth: Truth) -> Course:
    """Moments of checkpoints, by REST."""
    found: list[tuple[float, float]] = []
    for at, jobs in truth.jobs:
        progress = jobs[JOB].status.progress if JOB in jobs else None
        if progress is not None and progress.checkpoint is not None and progress.checkpoint.at is not None:
            found.append((at, progress.checkpoint.at))
    return Course(found)


def _age(truth: Truth) -> Figure:
    saves = _saves(truth)

    def at(moment: float) -> tuple[float, float, float]:
        low, high = saves.bounds(moment - 8, moment + 3)
        return moment - high - 2.5, moment - saves.at(moment), moment - low + 0.5

    return Figure(at, _is_read(list(zip(saves.times, saves.values, strict=True))), whole=0.5)


@panel(NAME, "Time since checkpoint")
def _since_checkpoint(truth: Truth) -> Figures:
    return one(_age(truth))


@panel(NAME, "Failures")
def _failures(truth: Truth) -> Figures:
    return one(exactly(0.0))


@panel(NAME, "GPU-hours")
def _gpu_hours(truth: Truth) -> Figures:
    return one(increased(truth, truth.held(JOB), 1 / 3600, JOB))


@panel(NAME, "Idle")
def _idle(truth: Truth) -> Figures:
    return one(exactly(truth.sum(truth.idle_of(JOB)) / truth.sum(truth.held(JOB)), 0.02))


@panel(NAME, "SM activity")
def _sm(truth: Truth) -> Figures:
    return one(active(truth, JOB))


@panel(NAME, "Energy")
def _energy(truth: Truth) -> Figures:
    return one(increased(truth, truth.used("watts", JOB), 1.0, JOB, each=400))


@panel(NAME, "Energy in kWh")
def _kwh(truth: Truth) -> Figures:
    return one(increased(truth, truth.used("watts", JOB), 1 / BASE_J, JOB, each=400))


@panel(NAME, "Cost")
def _cost(truth: Truth) -> Figures:
    return one(increased(truth, truth.held(JOB), PRICE / 3600, JOB))


@panel(NAME, "Memory peak")
def _peak(truth: Truth) -> Figures:
    return one(exactly(truth.peak(JOB)))


def _samples(truth: Truth) -> Figure:
    return counted(told(truth, "samples_total"), truth.window_s)


def _per_joule(truth: Truth) -> Figure:
    samples, watts = _samples(truth), truth.used("watts", JOB)

    def at(moment: float) -> tuple[float, float, float]:
        low, expected, high = samples.at(moment)
        mean = max(1.0, watts.mean(moment - truth.window_s, moment))
        least, most = watts.bounds(moment - truth.window_s - 5, moment + 1)
        return low / max(1.0, most) * 0.9, expected / mean, high / max(1.0, least) * 1.1

    return Figure(at, lambda _: False, whole=0.3)


@panel(NAME, "Samples / joule")
def _samples_per_joule(truth: Truth) -> Figures:
    return one(_per_joule(truth))


@panel(NAME, "Samples per second")
def _samples_per_second(truth: Truth) -> Figures:
    return {"A": {"samples/s": _samples(truth)}}


@panel(NAME, "Loss")
def _loss(truth: Truth) -> Figures:
    return {"A": {"attempt 1": read(truth, "loss", 0.2)}}


@panel(NAME, "Samples per joule")
def _samples_per_joule_graph(truth: Truth) -> Figures:
    return {"A": {"samples/J": _per_joule(truth)}}


@panel(NAME, "Step time")
def _step(truth: Truth) -> Figures:
    """Between the bounds of the buckets that steps fell into."""
    page = truth.pages[JOB]
    name = "stoker_train_step_seconds_bucket"
    bounds = sorted((one for one in page.values(name, "le") if one), key=float)
    counts = [page.last(name, le=one) for one in bounds]
    fell = [i for i, count in enumerate(counts) if count > (counts[i - 1] if i else 0)]
    low = float(bounds[fell[0] - 1]) if fell[0] else 0.0
    high = min(float(bounds[fell[-1]]), 30.0)
    middle = page.last("stoker_train_step_seconds_sum") / page.last("stoker_train_step_seconds_count")
    wide = Figure(lambda _: (low, middle, high), lambda _: False, whole=99.0)
    return {"A": {"p50": wide}, "B": {"p90": wide}, "C": {"p99": wide}}


@panel(NAME, "Time by phase")
def _where(truth: Truth) -> Figures:
    def phase(name: str) -> Figure:
        return counted(told(truth, "phase_seconds_total", phase=name), truth.window_s)

    train, waits = phase("train"), counted(told(truth, "data_wait_seconds_total"), truth.window_s)

    def rest(moment: float) -> tuple[float, float, float]:
        (low, mean, high), (least, middle, most) = train.at(moment), waits.at(moment)
        return low - most, mean - middle, high - least

    others = {
        dict(labels)["phase"]
        for _, page in truth.pages[JOB].read
        for name, labels in page
        if name == "stoker_train_phase_seconds_total"
    }
    return {
        "A": {"train": Figure(rest, whole=0.15)},
        "B": {"waiting for data": Figure(waits.at, whole=0.3)},
        "C": {name: Figure(phase(name).at, whole=0.5) for name in others - {"train"}},
    }


@panel(NAME, "Step and checkpointed step")
def _steps(truth: Truth) -> Figures:
    reported = [
        (at, float(progress.step))
        for at, jobs in truth.jobs
        if JOB in jobs and (progress := jobs[JOB].status.progress) is not None
    ]
    saved = told(truth, "checkpoint_last_step")
    # REST tells what was written into the status, the series what the worker reported: steps in between are many.
    return {
        "A": {"step": _rising(truth, told(truth, "step_total"), reported)},
        "B": {"in the checkpoint": Figure(gauge(Course(saved)).at, _is_read(saved), whole=0.1)},
    }


def _rising(truth: Truth, steps: list[tuple[float, float]], reported: list[tuple[float, float]]) -> Figure:
    course = Course(steps)

    def at(moment: float) -> tuple[float, float, float]:
        return 0.98 * course.at(moment - 15), course.at(moment - 3), 1.02 * course.at(moment + 3) + 5

    return Figure(at, _is_read(reported), whole=0.1)


@panel(NAME, "Checkpoint age")
def _age_graph(truth: Truth) -> Figures:
    return {"A": {"age": _age(truth)}, "B": {"asked for every": exactly(15.0)}}


@panel(NAME, "Trouble")
def _trouble(truth: Truth) -> Figures:
    return {"A": {}, "B": {"out of memory": exactly(0.0)}}


@panel(NAME, "Workers and attempts")
def _workers(truth: Truth) -> Figures:
    return {"A": {"attempt 1": gauge(truth.held(JOB))}}


def _by_worker(truth: Truth, key: str) -> dict[str, Figure]:
    found = {}
    for hold in truth.holds:
        if hold.job == JOB:
            course = scaled(product(truth.value(key, hold.gpu), truth.had(hold.gpu, JOB)), 0.01)
            found[_name(hold.worker, hold.gpu)] = rate(course, truth.window_s)
    return found


def _name(worker: int, gpu: int) -> str:
    return f"worker {worker} on local/{gpu}"


@panel(NAME, "SM activity by worker")
def _sm_by_worker(truth: Truth) -> Figures:
    return {"A": _by_worker(truth, "sm")}


@panel(NAME, "Busy by worker")
def _busy_by_worker(truth: Truth) -> Figures:
    return {"A": _by_worker(truth, "busy")}


@panel(NAME, "Idle, by class")
def _idle_by_class(truth: Truth) -> Figures:
    classes = ("no_process", "no_activity", "low_activity")
    return {
        "A": {name: rate(truth.idle_class(name, JOB), truth.window_s, wide=0.25) for name in classes},
        "B": {"not observed": rate(Course(), truth.window_s, wide=0.5)},
    }


@panel(NAME, "Throttled, by reason")
def _held_down(truth: Truth) -> Figures:
    def down(name: str) -> Course:
        return truth.of_jobs(lambda gpu: truth.reason(name, gpu), JOB)

    return {"A": {name: rate(down(name), truth.window_s, wide=0.02) for name in REASONS}}


@panel(NAME, "Power")
def _power(truth: Truth) -> Figures:
    return {"A": {"power": rate(truth.used("watts", JOB), truth.window_s)}}


@panel(NAME, "Memory peak by GPU")
def _peaks(truth: Truth) -> Figures:
    return {
        "A": {
            _name(hold.worker, hold.gpu): exactly(
                truth.value("used", hold.gpu).bounds(hold.begin, truth.end)[1] / H200_BYTES
            )
            for hold in truth.holds
            if hold.job == JOB
        }
    }


@panel(NAME, "GPUs used")
def _gpus(truth: Truth) -> Figures:
    found: dict[str, dict[str, Figure]] = {"A": {}, "B": {}, "C": {}}
    for hold in truth.holds:
        if hold.job == JOB:
            key = f"{hold.gpu}/{hold.attempt}/{hold.worker}"
            had = truth.had(hold.gpu, JOB)
            sm, watts = (product(truth.value(one, hold.gpu), had) for one in ("sm", "watts"))
            found["A"][key] = increased(truth, had, 1 / 3600, spans=1)
            found["B"][key] = exactly(truth.sum(sm) / 100 / truth.sum(had), 0.02, 0.03)
            found["C"][key] = increased(truth, watts, 1 / BASE_J, each=600, spans=1)
    return found
