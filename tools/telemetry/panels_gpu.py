"""What `stoker-gpu` has to show, all GPUs chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.spec.job import Phase
from tests.support.nvml_scenario import H200_BYTES

from .course import Course, combined, product
from .figures import EARLY_S, SLOP_S, Bounds, Figure, between, exactly, gauge, rate
from .panels import Figures, panel
from .panels_cluster import place, scaled
from .story import GIB, GPUS, MIG_GPU
from .truth import REASONS, Truth, user

GPU = "stoker-gpu"
EACH = range(GPUS)
WHOLE = [gpu for gpu in EACH if gpu != MIG_GPU]


def living(truth: Truth, gpus: Iterable[int] = EACH) -> list[int]:
    return [gpu for gpu in gpus if gpu not in truth.lost]


def each(truth: Truth, key: str, by: float = 1.0, gpus: Iterable[int] = EACH) -> dict[str, Figure]:
    return {place(gpu): gauge(scaled(truth.raw(key, gpu), by), truth.told(gpu)) for gpu in gpus}


def mean(truth: Truth, key: str) -> Figure:
    """Of those GPUs that tell it: one that is split has no duty cycle."""
    gpus = WHOLE if key == "busy" else EACH
    there = combined([truth.told(gpu) for gpu in gpus])
    all_of_them = combined([truth.value(key, gpu) for gpu in gpus])
    told = combined([scaled(all_of_them, 0.01), there], lambda values: values[0] / max(1.0, values[1]))
    return gauge(told, while_quiet(truth), wide=0.002)


def while_quiet(truth: Truth) -> Course:
    """1 until a GPU is lost. From then on the exporter begins a new session now and then, to see whether it is back:
    activity counters need two readings of a session, so that they are absent for a poll.
    """
    return Course([(0.0, 1.0), *((at - 1, 0.0) for at in truth.lost.values())])


@panel(GPU, "GPU up")
def _answers(truth: Truth) -> Figures:
    return {"A": {place(gpu): exactly(float(gpu not in truth.lost)) for gpu in EACH}}


@panel(GPU, "Recovery action")
def _recovery(truth: Truth) -> Figures:
    return {"A": each(truth, "recovery", gpus=living(truth))}


@panel(GPU, "XID errors")
def _xids(truth: Truth) -> Figures:
    return {"A": {place(gpu): exactly(len({number for at, _, number in truth.xids if at == gpu})) for gpu in EACH}}


@panel(GPU, "Uncorrected memory errors")
def _ecc(truth: Truth) -> Figures:
    """Rounded to whole errors, as the panel is: what Prometheus extrapolates shows behind the point."""
    found = {}
    for gpu in living(truth):
        course = truth.raw("ecc_uncorrected_volatile", gpu)
        found[place(gpu)] = exactly(course.at(truth.end) - course.at(truth.begin), 0.05, 0.05)
    return {"A": found}


@panel(GPU, "Utilization, mean of selected GPUs")
def _works(truth: Truth) -> Figures:
    rows = {
        "A": ("busy (duty cycle)", "busy"),
        "B": ("SM active", "sm"),
        "C": ("SM occupancy", "occ"),
        "D": ("tensor cores", "tensor"),
        "E": ("memory bandwidth", "dram"),
    }
    return {ref: {legend: mean(truth, key)} for ref, (legend, key) in rows.items()}


@panel(GPU, "SM activity by GPU")
def _sm(truth: Truth) -> Figures:
    return {
        "A": {
            place(gpu): gauge(
                scaled(truth.raw("sm", gpu), 0.01), product(truth.told(gpu), while_quiet(truth)), wide=0.002
            )
            for gpu in EACH
        }
    }


@panel(GPU, "Busy by GPU")
def _busy(truth: Truth) -> Figures:
    return {
        "A": {place(gpu): rate(scaled(truth.raw("busy", gpu), 0.01), truth.window_s, truth.told(gpu)) for gpu in WHOLE}
    }


@panel(GPU, "Memory")
def _memory(truth: Truth) -> Figures:
    return {"A": each(truth, "used"), "B": {"total": exactly(float(H200_BYTES))}}


@panel(GPU, "Time by account")
def _accounts(truth: Truth) -> Figures:
    lost = combined([scaled(truth.told(gpu), -1.0) for gpu in truth.lost] or [Course()])
    unobserved = scaled(combined([lost, Course([(0.0, float(len(truth.lost)))])]), 1 / GPUS)
    attributed = scaled(combined([product(truth.had(gpu), truth.told(gpu)) for gpu in EACH]), 1 / GPUS)
    rest = combined([attributed, unobserved], lambda values: 1 - sum(values))
    parts = {"attributed": attributed, "unallocated": rest, "unobserved": unobserved}
    return {"A": {name: rate(course, truth.window_s, wide=0.05) for name, course in parts.items()}}


@panel(GPU, "Power")
def _power(truth: Truth) -> Figures:
    return {"A": each(truth, "watts"), "B": {"limit": exactly(700.0)}}


@panel(GPU, "Temperature")
def _temperature(truth: Truth) -> Figures:
    return {"A": each(truth, "temp")}


@panel(GPU, "Memory temperature")
def _memory_temperature(truth: Truth) -> Figures:
    return {"A": each(truth, "mem_temp")}


@panel(GPU, "Thermal margin")
def _margin(truth: Truth) -> Figures:
    return {"A": each(truth, "margin")}


@panel(GPU, "Throttled, by reason")
def _held_down(truth: Truth) -> Figures:
    def share(name: str) -> Course:
        there = combined([truth.told(gpu) for gpu in EACH])
        down = combined([truth.reason(name, gpu) for gpu in EACH])
        return combined([down, there], lambda values: values[0] / max(1.0, values[1]))

    return {"A": {name: rate(share(name), truth.window_s, wide=0.01) for name in REASONS}}


@panel(GPU, "SM clock")
def _clock(truth: Truth) -> Figures:
    return {"A": each(truth, "sm_clock", 1e6)}


@panel(GPU, "Memory clock")
def _memory_clock(truth: Truth) -> Figures:
    return {"A": each(truth, "mem_clock", 1e6)}


@panel(GPU, "PCIe")
def _pcie(truth: Truth) -> Figures:
    return {"A": {way: rate(truth.all(f"pcie_{way}"), truth.window_s, wide=1e6) for way in ("tx", "rx")}}


@panel(GPU, "NVLink")
def _nvlink(truth: Truth) -> Figures:
    return {"A": {way: rate(truth.all(f"nvlink_{way}"), truth.window_s, wide=1e6) for way in ("tx", "rx")}}


@panel(GPU, "Link errors")
def _errors(truth: Truth) -> Figures:
    def kind(key: str) -> Figure:
        return steps_per_second(truth, combined([truth.raw(key, gpu) for gpu in EACH]))

    nvlink = {"NVLink replay": "nvlink_replay", "NVLink recovery": "nvlink_recovery", "NVLink crc_flit": "nvlink_crc"}
    return {"A": {"PCIe replays": kind("pcie_replay")}, "B": {name: kind(key) for name, key in nvlink.items()}}


def steps_per_second(truth: Truth, course: Course) -> Figure:
    """Rate of a counter that jumps and is read every 15 s or so; `course` is the counter itself."""
    window_s = truth.window_s

    def at(moment: float) -> Bounds:
        low, high = course.at(moment - window_s - 20), course.at(moment + EARLY_S)
        inner = 0.0
        expected = course.at(moment) - course.at(moment - window_s)
        return 0.9 * max(0.0, inner) / window_s, expected / window_s, 2 * (high - low) / window_s

    return Figure(at, whole=0.5)


@panel(GPU, "Holders")
def _holders(truth: Truth) -> Figures:
    """By GPU, job, attempt, worker, queue, user, method."""
    found = {}
    for hold in truth.holds:
        if not hold.end and truth.job(hold.job).status.phase is Phase.RUNNING:
            job = truth.job(hold.job)
            words = (hold.gpu, job.metadata.namespace, hold.job, hold.attempt, hold.worker, job.spec.queue, user(job))
            found["/".join(map(str, (*words, "exclusive")))] = exactly(1.0)
    return {"A": found}


@panel(GPU, "Allocated but idle")
def _held_idle(truth: Truth) -> Figures:
    return {"A": {place(gpu): since(idle_now(truth, gpu), truth.had(gpu)) for gpu in WHOLE}}


def idle_now(truth: Truth, gpu: int) -> Course:
    """1 while it is held and idle."""
    classes = combined([truth.idle(name, gpu) for name in ("no_process", "no_activity", "low_activity")])
    return combined([classes, truth.had(gpu)], lambda values: float(values[0] * values[1] > 0))


def since(course: Course, there: Course) -> Figure:
    """How long the course has been 1 without a break."""

    def lasted(moment: float) -> float:
        began = None
        for at, value in zip(course.times, course.values, strict=True):
            if at > moment:
                break
            began = (began if began is not None else at) if value else None
        return 0.0 if began is None else moment - began

    def at(moment: float) -> Bounds:
        times = [lasted(moment + by / 2) for by in range(-10, 4)]
        low = 0.0 if min(times) < SLOP_S else min(times) - 1.5
        return low, lasted(moment - 1.5), max(times) + 1.5

    def needed(moment: float) -> bool:
        return there.bounds(moment - SLOP_S - 3, moment + EARLY_S)[0] > 0

    return Figure(at, needed)


@panel(GPU, "Processes")
def _processes(truth: Truth) -> Figures:
    def rows(value: Callable[[int], float], gpus: Iterable[int]) -> dict[str, Figure]:
        return {str(gpu): exactly(value(gpu)) for gpu in gpus if gpu not in truth.lost}

    free = [gpu for gpu in EACH if not truth.had(gpu).at(truth.end)]
    return {
        "A": rows(lambda gpu: truth.processes(gpu).at(truth.end), EACH),
        "B": rows(lambda gpu: float(gpu == truth.stray), EACH),
        "C": rows(lambda gpu: float(gpu in (truth.stray, MIG_GPU)), free),
    }


@panel(GPU, "XIDs")
def _numbers(truth: Truth) -> Figures:
    found: dict[str, Figure] = {}
    for gpu, at, number in truth.xids:
        ago = truth.end - at
        found[f"{gpu}/{number}"] = between(ago - 3, ago, ago + 3)
    return {"A": found}


@panel(GPU, "MIG devices")
def _mig(truth: Truth) -> Figures:
    found: dict[str, dict[str, Figure]] = {"A": {}, "B": {}, "C": {}}
    for device in truth.gpus[MIG_GPU].devices:
        profile = f"{MIG_GPU}/{device.slices}g.{device.memory // GIB}gb"
        found["A"][profile] = exactly(1.0)
        found["B"][profile] = exactly(device.first["used"] or 0.0)
        found["C"][profile] = exactly((device.first["sm"] or 0.0) / 100, 0.002)
    return found


@panel(GPU, "Hardware")
def _what(truth: Truth) -> Figures:
    def pending(gpu: int) -> float:
        return truth.raw("remap_pending", gpu).at(truth.end)

    there = living(truth)
    return {
        "A": {f"{gpu}/NVIDIA H200": exactly(float(H200_BYTES)) for gpu in there},
        "B": {f"{gpu}/NVIDIA H200": exactly(pending(gpu)) for gpu in there},
    }
