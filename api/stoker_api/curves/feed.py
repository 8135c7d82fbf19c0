"""From reports of jobs and their GPUs to the file of curves: what of them is a point, how often, when it is written.

Everything in a report may be a tenant's. So names and numbers are checked one by one (a wrong one costs no other), a
job's reports count twice a second at most, and what waits for the file is bounded. Never holds up a report. Called by
`routes/report.py`, `routes/curves.py` and `services.py`.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter

from stoker.spec.job import ENDED, TrainingJob
from stoker.spec.usage import GpuReceipt
from stoker.spec.worker import Progress
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker_api.kept_file import FileUnavailable
from stoker_api.usage.db import JobFacts
from stoker_api.usage.intake import facts_of

from .file import Sample
from .gpu_points import EVERY_S, MOST_GPUS, PREFIX, GpuKey, key_of, values_between
from .store import CurvesFull, CurveStore

log = logging.getLogger(__name__)

WRITE_EVERY_S = 10.0
LEAST_S = 0.5
"""Reports that follow sooner replace each other: the supervisor sends one a second."""
MOST_WAITING = 64
"""Samples of a job that wait for a file that takes none; of more every other goes."""
LONGEST_NAME = 128
MOST_NAMES = 256
"""Of one report."""
MOST_STEP = 2**53 - 1
CHECKPOINT = "stoker/checkpoint"
"""The curve of a job's checkpoints: a point when there is a new one, its value the step that it holds."""
_OURS = (PREFIX, "stoker/")
"""What names of curves begin with that no job may report itself."""
RECENT = 8
_JOBS_AT_ONCE = 100
_JUST_BEFORE_S = 0.0005
_LATER_S = 0.001
_TIDY_EVERY_S = 3600.0


@dataclass(slots=True)
class _Live:
    facts: JobFacts
    waiting: list[Sample] = field(default_factory=list)
    late: Sample | None = None
    """The newest, if it came too soon after the one before."""
    newest: Sample | None = None
    """The newest that counts."""
    reported: Sample | None = None
    """The same, of those that the job has reported itself."""
    gpus: dict[GpuKey, GpuReceipt] = field(default_factory=dict)
    """Where the newest point of each GPU ended."""
    saved: tuple[int, int] = (0, 0)
    """Attempt and step of the newest checkpoint."""
    taken_s: float = -math.inf
    recent: deque[Sample] = field(default_factory=deque)
    """The newest that count, for those who follow."""
    gone_at: float = -math.inf
    """Of the newest sample that is in the file, or soon, but no longer in `recent`."""


class CurveFeed:
    """`outcomes`: counts samples by what became of them. Invariant: holds jobs that have reported and not ended."""

    def __init__(self, store: CurveStore, jobs: WatchCache[TrainingJob], clock: Clock, outcomes: Counter) -> None:
        self.store, self._jobs, self._clock, self._outcomes = store, jobs, clock, outcomes
        self._live: dict[str, _Live] = {}
        self._tidy_s = -math.inf
        self._warned = ""

    def __len__(self) -> int:
        return len(self._live)

    def take(self, job: TrainingJob, attempt: int, progress: Progress) -> None:
        """Take what a job's first worker reports, newer than all before."""
        values, saved = _values(progress.metrics), progress.checkpoint
        is_saved = saved is not None and 0 < saved.step <= MOST_STEP
        if not (values or is_saved) or not 0 <= progress.step <= MOST_STEP:
            return
        live = self._live_of(job)
        if saved is not None and is_saved and live.saved != (attempt, saved.step):
            live.saved = attempt, saved.step
            values[CHECKPOINT] = float(saved.step)
        elif live.late is not None and live.late.attempt == attempt and CHECKPOINT in live.late.values:
            values[CHECKPOINT] = live.late.values[CHECKPOINT]  # in place of that one
        if not values:
            return
        sample = Sample(attempt, progress.step, self._time_of(progress, live), values)
        now_s = self._clock.monotonic()
        if now_s - live.taken_s < LEAST_S:
            if live.late is not None:
                self._outcomes.labels("thinned").inc()
            live.late = sample
            return
        live.taken_s = now_s
        _count(live, sample)

    def take_receipts(self, receipts: Iterable[GpuReceipt]) -> None:
        """Take what exporters report of the GPUs of jobs that have not ended: a point a minute of each."""
        for receipt in receipts:
            job = self._jobs.by_uid(receipt.job_uid)
            if job is not None and job.status.phase not in ENDED:
                self._take_receipt(self._live_of(job), receipt)

    def _take_receipt(self, live: _Live, receipt: GpuReceipt) -> None:
        key = key_of(receipt)
        before = live.gpus.get(key)
        if before is None:
            if len({(worker, uuid) for _, worker, uuid in live.gpus} | {key[1:]}) <= MOST_GPUS:
                live.gpus = {one: old for one, old in live.gpus.items() if one[0] == receipt.attempt} | {key: receipt}
            return
        if receipt.at - before.at < EVERY_S:
            return
        live.gpus[key] = receipt
        values = values_between(before, receipt)
        if not values:
            return
        if live.late is not None:
            _count(live, live.late)
            live.late = None
        last, newest = live.reported, live.newest
        at = self._clock.now().timestamp()
        step = last.step if last is not None and last.attempt == receipt.attempt else 0
        at = at if newest is None else max(at, newest.at + _LATER_S)
        _count(live, Sample(receipt.attempt, step, at, values), own=False)

    def _live_of(self, job: TrainingJob) -> _Live:
        live = self._live.get(job.uid)
        if live is None:
            live = self._live[job.uid] = _Live(facts_of(job))
        return live

    def since(self, uid: str, at: float) -> tuple[list[Sample], bool]:
        """The job's samples from that time on, and whether there may be more of them, in the file.

        Units: Unix seconds.
        """
        live = self._live.get(uid)
        if live is None:
            return [], False
        return [sample for sample in live.recent if sample.at >= at], live.gone_at >= at

    def newest_at(self, uid: str) -> float:
        """When the job's newest sample was; 0: it has none here. Units: Unix seconds."""
        live = self._live.get(uid)
        return 0.0 if live is None or live.newest is None else live.newest.at

    async def written(self, uid: str) -> None:
        """Return once all that the job has reported is in the file. Raises: FileUnavailable."""
        if uid in self._live:
            await self._write([uid])

    async def run(self) -> None:
        """Write now and then, and forget what is old, until cancelled."""
        while True:
            await self._clock.sleep(WRITE_EVERY_S)
            await self.write_all()
            now_s = self._clock.monotonic()
            if now_s - self._tidy_s >= _TIDY_EVERY_S:
                self._tidy_s = now_s
                await self._forget_old()

    async def write_all(self) -> None:
        """Write what waits; what the file does not take goes on waiting."""
        all_of_them = list(self._live)
        for begin in range(0, len(all_of_them), _JOBS_AT_ONCE):
            try:
                await self._write(all_of_them[begin : begin + _JOBS_AT_ONCE])
            except FileUnavailable as error:
                self._warn(f"curves can't be written now: {error}")
                return

    async def _write(self, uids: list[str]) -> None:
        batch = []
        for uid in uids:
            live = self._live.get(uid)
            if live is None:
                continue
            if live.late is not None:
                _count(live, live.late)
                live.late = None
            batch.append((live.facts, live.waiting))
            live.waiting = []
        count = sum(len(samples) for _, samples in batch)
        try:
            await self.store.add(batch, self._lives)
        except CurvesFull as full:
            self._outcomes.labels("dropped").inc(count)
            self._warn(f"metrics are not kept: {full}")
        except FileUnavailable:
            for facts, samples in batch:
                live = self._live.get(facts.uid)
                if live is not None:
                    live.waiting = _fewer([*samples, *live.waiting])
            raise
        else:
            self._outcomes.labels("kept").inc(count)
            self._warned = ""
        for uid in uids:
            live, job = self._live.get(uid), self._jobs.by_uid(uid)
            over = job is None or job.status.phase in ENDED
            if live is not None and over and not live.waiting and live.late is None:
                del self._live[uid]

    async def _forget_old(self) -> None:
        try:
            if gone := await self.store.forget_old(self._lives):
                log.info("curves: %d ended jobs older than what is kept were removed", gone)
        except FileUnavailable as error:
            log.warning("curves can't be tidied now: %s", error)

    def _lives(self, uid: str) -> bool:
        """Called in the writing thread."""
        job = self._jobs.by_uid(uid)
        return not self._jobs.is_synced or (job is not None and job.status.phase not in ENDED)

    def _time_of(self, progress: Progress, live: _Live) -> float:
        """Unix seconds: the worker's word where it can be true, and later than what came before."""
        now = self._clock.now().timestamp()
        at = min(max(progress.at, live.facts.created_at), now) if math.isfinite(progress.at) else now
        before = live.late or live.newest
        return at if before is None else max(at, before.at + _LATER_S)

    def _warn(self, what: str) -> None:
        if what != self._warned:
            log.warning("%s", what)
        self._warned = what


def _values(metrics: Mapping[str, float]) -> dict[str, float]:
    found = {}
    for name, value in itertools.islice(metrics.items(), MOST_NAMES):
        # Printable: what shows them is safe from line ends, escapes or marks of direction.
        printable = 0 < len(name) <= LONGEST_NAME and name.isprintable()
        if printable and not name.startswith(_OURS) and math.isfinite(value):
            found[name] = value
    return found


def _count(live: _Live, sample: Sample, *, own: bool = True) -> None:
    """`own`: the job has reported it itself."""
    before, last = live.newest, live.reported
    live.newest = sample
    if own:
        live.reported = sample
        if last is not None and (last.attempt, last.step, last.values) == (*sample[:2], sample.values):
            return  # the same again: reported for a hold, a stall or a checkpoint
    if before is None:
        live.gone_at = sample.at - _JUST_BEFORE_S  # who follows may lack what an earlier run of the job reported last
    live.waiting.append(sample)
    live.waiting = _fewer(live.waiting)
    live.recent.append(sample)
    if len(live.recent) > RECENT:
        live.gone_at = live.recent.popleft().at


def _fewer(samples: list[Sample]) -> list[Sample]:
    return samples if len(samples) <= MOST_WAITING else samples[::-1][::2][::-1]
