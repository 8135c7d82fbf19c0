"""The run's figures, computed from the scenario, the notes of holds and the run's own records; never from Prometheus.

Courses are of all GPUs, of one, or of a job; each is exact but for the half second in which a worker's begin or end is
seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.spec.job import TrainingJob
from stoker.spec.names import ANNOTATION_SUBMITTER
from tests.support.nvml_scenario import H200_BYTES, Gpu

from .course import Course, combined, product, while_
from .drive import Hold
from .figures import EARLY_S, SLOP_S
from .story import GPUS, MIG_GPU, PRICE
from .watch import Pages

FIRST = {
    "watts": 75.0,
    "temp": 35.0,
    "mem_temp": 38.0,
    "margin": 50.0,
    "sm_clock": 1980.0,
    "mem_clock": 3201.0,
    "limit": 700.0,
    "reasons": 1.0,
}
"""What the fake library tells unless it was told otherwise (tests/nvml/scenario.h)."""
REASONS = {"sw_power_cap": 0x4, "hw_power_brake": 0x80, "sw_thermal": 0x20, "hw_thermal": 0x40, "sync_boost": 0x10}
STALL_S = 4.0
ALWAYS = Course([(0.0, 1.0)])


@dataclass
class Truth:
    begin: float
    end: float
    gpus: Sequence[Gpu]
    holds: Sequence[Hold]
    lost: Mapping[int, float]
    xids: Sequence[tuple[int, float, int]]
    stray: int | None
    jobs: Sequence[tuple[float, Mapping[str, TrainingJob]]]
    pages: Mapping[str, Pages]
    scrape_s: float
    window_s: float
    """Of rates."""
    step_s: float
    """Between two points of a graph."""
    _kept: dict[tuple[object, ...], Course] = field(default_factory=dict)

    def stood_still(self, moment: float) -> bool:
        """Whether the machine answered nobody for a while before, or does not yet: by the looks of our own watch."""
        reads = [at for at, _ in self.pages["exporter"].read]
        return any(
            before - EARLY_S <= moment <= after + self.window_s + 2 * SLOP_S
            for before, after in itertools.pairwise(reads)
            if after - before > STALL_S
        )

    # Of GPUs

    def told(self, gpu: int) -> Course:
        """1 while it answers."""
        return while_((0.0, self.lost.get(gpu, 1e12)))

    def raw(self, key: str, gpu: int) -> Course:
        """As the library tells it, lost or not."""
        first = self.gpus[gpu].first.get(key, FIRST.get(key, 0.0)) or 0.0
        return Course(
            [
                (0.0, first),
                *((at, float(values[key] or 0.0)) for at, values, _ in self.gpus[gpu].later if key in values),
            ]
        )

    def value(self, key: str, gpu: int) -> Course:
        """0 once it is lost."""
        return self._once(("value", key, gpu), lambda: product(self.raw(key, gpu), self.told(gpu)))

    def all(self, key: str) -> Course:
        return self._once(("all", key), lambda: combined([self.value(key, gpu) for gpu in range(GPUS)]))

    def full(self, key: str) -> Course:
        """Of whole GPUs: those that are not split into MIG devices."""
        return self._once(
            ("full", key), lambda: combined([self.value(key, gpu) for gpu in range(GPUS) if gpu != MIG_GPU])
        )

    def reason(self, name: str, gpu: int) -> Course:
        bit, raw = REASONS[name], self.value("reasons", gpu)
        return Course([(at, float(bool(int(value) & bit))) for at, value in zip(raw.times, raw.values, strict=True)])

    def processes(self, gpu: int) -> Course:
        return Course(
            [(0.0, 0.0), *((at, float(len(found))) for at, _, found in self.gpus[gpu].later if found is not None)]
        )

    def idle(self, name: str, gpu: int) -> Course:
        """1 while a process or a kernel that is little makes it idle of this class, held or not."""

        def one(values: list[float]) -> float:
            busy, sm, processes, told = values
            if not told:
                return 0.0
            if busy == 0 and sm < 1:
                return float(name == ("no_activity" if processes else "no_process"))
            return float(sm < 10 and name == "low_activity")

        parts = [self.raw("busy", gpu), self.raw("sm", gpu), self.processes(gpu), self.told(gpu)]
        return self._once(("idle", name, gpu), lambda: combined(parts, one))

    # Of jobs

    def had(self, gpu: int, *jobs: str, worker: int | None = None, attempt: int | None = None) -> Course:
        """1 while one of these jobs (none named: any) has the GPU."""
        spans = [
            hold.span(1e12)
            for hold in self.holds
            if hold.gpu == gpu
            and (not jobs or hold.job in jobs)
            and worker in (None, hold.worker)
            and attempt in (None, hold.attempt)
        ]
        return while_(*spans)

    def of_jobs(self, course: Callable[[int], Course], *jobs: str) -> Course:
        """The sum over GPUs of the course while one of these jobs has the GPU."""
        return combined([product(course(gpu), self.had(gpu, *jobs)) for gpu in range(GPUS)])

    def held(self, *jobs: str) -> Course:
        return self._once(("held", jobs), lambda: combined([self.had(gpu, *jobs) for gpu in range(GPUS)]))

    def idle_of(self, *jobs: str) -> Course:
        parts = [self.idle_class(name, *jobs) for name in ("no_process", "no_activity", "low_activity")]
        return self._once(("idle_of", jobs), lambda: combined(parts))

    def idle_class(self, name: str, *jobs: str) -> Course:
        return self._once(("idle", name, jobs), lambda: self.of_jobs(lambda gpu: self.idle(name, gpu), *jobs))

    def used(self, key: str, *jobs: str) -> Course:
        return self._once(("used", key, jobs), lambda: self.of_jobs(lambda gpu: self.value(key, gpu), *jobs))

    def peak(self, *jobs: str) -> float:
        """Of memory, as a share."""
        return (
            max(
                self.value("used", hold.gpu).bounds(hold.begin, hold.end or self.end)[1]
                for hold in self.holds
                if hold.job in jobs
            )
            / H200_BYTES
        )

    def sum(self, course: Course) -> float:
        """Over the time shown."""
        return course.integral(self.begin, self.end)

    def cost(self, *jobs: str) -> float:
        return self.sum(self.held(*jobs)) / 3600 * PRICE

    def counts(self, wanted: Callable[[TrainingJob], bool]) -> Course:
        """How many jobs are so, by REST."""
        return Course([(at, float(sum(wanted(job) for job in jobs.values()))) for at, jobs in self.jobs])

    def changes(self) -> list[float]:
        """Moments at which a job changed, by REST's own times."""
        found = set()
        for _, jobs in self.jobs:
            for job in jobs.values():
                status = job.status
                ends = [at for one in status.attempts for at in (one.started_at, one.ended_at)]
                times = (job.metadata.creation_timestamp, status.queued_at, status.placed_at, status.started_at, *ends)
                found |= {at.timestamp() for at in times if at is not None}
        return sorted(found)

    def spans(self, *jobs: str) -> int:
        """How often a GPU was given to these jobs (none named: any)."""
        return sum(not jobs or hold.job in jobs for hold in self.holds)

    def names(self, **wanted: str) -> list[str]:
        """Of jobs with this queue or user or project that had a GPU."""
        had = {hold.job for hold in self.holds}
        return sorted(
            name
            for name, job in self.jobs[-1][1].items()
            if name in had
            and wanted.items()
            <= {"queue": job.spec.queue, "user": user(job), "project": job.metadata.namespace}.items()
        )

    def job(self, name: str) -> TrainingJob:
        return self.jobs[-1][1][name]

    def waits(self, *queues: str) -> list[float]:
        """Seconds from a job's coming to its queue, or back, until all its workers ran; by REST's own times."""
        found: dict[tuple[str, int], float] = {}
        for _, jobs in self.jobs:
            for name, job in jobs.items():
                status = job.status
                if status.started_at is None or not status.attempt or (queues and job.spec.queue not in queues):
                    continue
                ends = [one.ended_at for one in status.attempts if one.number < status.attempt]
                since = max(at for at in (status.queued_at or job.metadata.creation_timestamp, *ends) if at is not None)
                found[name, status.attempt] = max(0.0, (status.started_at - since).total_seconds())
        return list(found.values())

    def _once(self, key: tuple[object, ...], make: Callable[[], Course]) -> Course:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def user(job: TrainingJob) -> str:
    return job.metadata.annotations.get(ANNOTATION_SUBMITTER, "")
