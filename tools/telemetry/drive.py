"""Plays the story: sees workers in the process table, and writes what their GPUs do into the fake NVML's scenario.

Owns the notes of who held which GPU when (`Hold`): from the process table, as nobody in the product looks at it. Steps
are written a little ahead of time, so that no poll ever sees a past that changes.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from dataclasses import dataclass, field

from tests.support.harness import Server, WorkerProcess
from tests.support.nvml_scenario import GPU_IS_LOST, Gpu, Scenario

from .story import GIB, GPUS, INCIDENTS, MIG_GPU, RESTING, Incident, Job, Values

EVERY_S, AHEAD_S, VARIES_S = 0.4, 0.3, 3.0


@dataclass
class Hold:
    """One worker's time on one GPU, to half a second. Unix seconds."""

    job: str
    attempt: int
    worker: int
    gpu: int
    pod_uid: str
    pid: int
    begin: float
    end: float = 0.0
    """0: it still has it."""
    process_at: float = 0.0
    """When its program opened the GPU."""
    varied_at: float = 0.0

    def span(self, now: float) -> tuple[float, float]:
        return self.begin, self.end or now


@dataclass
class Driver:
    scenario: Scenario
    server: Server
    jobs: dict[str, Job]
    length_s: float
    began: float = 0.0
    holds: list[Hold] = field(default_factory=list)
    lost: dict[int, float] = field(default_factory=dict)
    """GPU → since when."""
    xids: list[tuple[int, float, int]] = field(default_factory=list)
    """(GPU, when, number)"""
    stray: int | None = None
    """The GPU with a process of nobody's."""
    failed: BaseException | None = None

    def __post_init__(self) -> None:
        self._dice = random.Random(6)
        self._left: list[Incident] = list(INCIDENTS)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def gpus(self) -> list[Gpu]:
        return self.scenario.gpus

    def start(self) -> None:
        self.began = time.time()
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(10)
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            while not self._ends.wait(EVERY_S):
                self._look()
        except BaseException as error:  # noqa: BLE001 (told by stop)
            self.failed = error

    def _look(self) -> None:
        seen: dict[tuple[str, int], WorkerProcess] = {}
        for one in sorted(self.server.workers(), key=lambda one: (one.rank is None, one.pid)):
            for uuid in one.gpus:
                seen.setdefault((one.pod_uid, _index(uuid)), one)
        now = time.time()
        living = {(one.pod_uid, one.gpu): one for one in self.holds if not one.end}
        for key, hold in living.items():
            if key not in seen:
                hold.end = now
                self._step(hold.gpu, now, RESTING, [])
        for (pod_uid, gpu), one in seen.items():
            hold = living.get((pod_uid, gpu)) or Hold(one.job, one.attempt, one.worker, gpu, pod_uid, one.pid, now)
            if not hold.varied_at:
                self.holds.append(hold)
                for other in self.server.workers():
                    if other.rank is not None:
                        with contextlib.suppress(OSError):  # trainers leave the processor to what is measured
                            os.setpriority(os.PRIO_PROCESS, other.pid, 15)
            if now - hold.varied_at >= VARIES_S:
                self._vary(hold, now)
        for incident in [one for one in self._left if now >= self.began + one.share * self.length_s]:
            if self._happens(incident, now):
                self._left.remove(incident)
        self.scenario.write()

    def _vary(self, hold: Hold, now: float) -> None:
        job, age_s = self.jobs[hold.job], now - hold.begin
        values = RESTING | job.profile(hold.worker, age_s, self._dice)
        there = age_s >= job.process_after_s
        if there and not hold.process_at:
            hold.process_at = now
        self._step(hold.gpu, now, values, [(hold.pid, int(values["used"]), values["sm"])] if there else [])
        hold.varied_at = now

    def _step(self, gpu: int, now: float, values: Values, processes: list[tuple[int, int, float]]) -> None:
        if gpu != self.stray:
            self.gpus[gpu].step(now + AHEAD_S, processes=processes, **values)

    def _happens(self, incident: Incident, now: float) -> bool:
        """False: not yet, there is no such GPU."""
        held = {one.gpu: one.job for one in reversed(self.holds) if not one.end}
        if incident.to:
            found = [gpu for gpu, job in held.items() if job == incident.to]
        else:
            found = [
                gpu for gpu in range(GPUS - 1, -1, -1) if gpu not in held and gpu not in self.lost and gpu != MIG_GPU
            ]
        if not found:
            return False
        gpu, at = found[0], now + AHEAD_S
        if incident.what.startswith("xid"):
            self._xid(gpu, at, int(incident.what.split()[1]))
        elif incident.what == "lost":
            self.lost[gpu] = at
            self.scenario.fault(gpu=gpu, code=GPU_IS_LOST, begin=at)
            self._xid(gpu, at - 0.2, 79)
        elif incident.what == "stray process":
            self._step(gpu, now, RESTING | incident.values, [(1, 9 * GIB, 0.0)])
            self.stray = gpu
        else:
            self.gpus[gpu].step(at, processes=None, **incident.values)
        return True

    def _xid(self, gpu: int, at: float, number: int) -> None:
        self.scenario.xid(gpu, at, number)
        self.xids.append((gpu, at, number))


def _index(uuid: str) -> int:
    """As `Scenario.add_gpu` numbers them."""
    return int(uuid[4:12], 16)
