"""Owns the course of a training: steps, evaluations, saves, and every way it ends. Called by `main` on each rank.

Every rank runs this same loop and takes each turn by the vote's result or by numbers all ranks share, so collectives
always meet. Order of a turn: evaluation that is due (also one that a stop put off), the end, one step, then the vote's
consequences. A checkpoint therefore always lies between two steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from .config import Target
from .counter import order
from .distributed import Vote
from .errors import Diverged, Stopped
from .evaluate import evaluate
from .measure import memory_peak
from .precision import BAD_STEPS, SCALE_FLOOR
from .recipe import PrefetchingSource
from .report import Silent
from .save import Keeper
from .step import share, train_step
from .stop import StopSignal
from .trace import Trace
from .training import Training, better, share_buffers

LOOK_EVERY = 50  # steps between two reads of the device on CUDA; on the CPU each step


class Loop:
    def __init__(
        self,
        training: Training,
        keeper: Keeper,
        report: Silent,
        stop: StopSignal,
        trace: Trace | None,
        beat: Callable[[], None],
        keep_best: Callable[[], None] = lambda: None,
    ) -> None:
        """`keep_best` is called after each evaluation that is the best so far."""
        self._t, self._keeper, self._report = training, keeper, report
        self._stop, self._trace, self._beat, self._keep_best = stop, trace, beat, keep_best
        self._orders: dict[int, torch.Tensor] = {}  # of this epoch, and of the next one where a source fetches ahead
        self._prefetching = training.data if isinstance(training.data, PrefetchingSource) else None
        self._mark = self._saved_at = time.monotonic()

    def run(self) -> None:
        """Trains to the last step, to the target or until evaluations no longer improve.

        Raises: Stopped after saving; OutOfMemory, Diverged, PeerLost, Stalled, Superseded.
        """
        t = self._t
        self._mark = self._saved_at = time.monotonic()
        while True:
            if self._evaluation_due():
                self._evaluate()
            if t.ended is not None:
                break
            vote = self._step()
            if vote.stop:
                self._save()
                at = self._keeper.step
                saved = "no checkpoint was written" if at is None else f"the newest checkpoint is of step {at}"
                raise Stopped(f"stopped on request after step {t.cursor.step}; {saved}")
            if vote.save:
                self._save()
        self._save()

    def _step(self) -> Vote:
        t, cursor = self._t, self._t.cursor
        asked = time.monotonic()
        rows = self._rows(cursor.epoch, cursor.consumed)
        if self._prefetching is not None and cursor.step + 1 < t.total_steps:
            at = cursor.consumed + len(rows)
            after = self._rows(cursor.epoch, at) if at < t.train_rows else self._rows(cursor.epoch + 1, 0)
            self._prefetching.expect(after[share(t.ranks.rank, t.ranks.world, len(after))])
        self._report.waited(time.monotonic() - asked)
        micro = t.micro_batch
        wish = Vote(stop=self._stop.requested, save=self._save_is_due())
        vote = train_step(t, rows, wish)
        cursor.step += 1
        cursor.consumed += len(rows)
        if cursor.consumed >= t.train_rows:
            cursor.epoch, cursor.consumed = cursor.epoch + 1, 0
        t.tally.samples += len(rows)
        if self._trace is not None:
            self._trace.stepped(t)
        self._report.stepped(len(rows), self._lap())
        if t.micro_batch != micro:
            self._report.halved()
        if (t.device.type == "cpu" or cursor.step % LOOK_EVERY == 0) and t.scaler.too_many_skipped():
            floor = f" with the loss scale at its floor of {SCALE_FLOOR:g}" if t.scaler.enabled else ""
            raise Diverged(
                f"the gradient was not finite in {BAD_STEPS} steps in a row up to step {cursor.step}{floor}; "
                "lower optimizer.learningRate or change the precision"
            )
        self._beat()
        return vote

    def _evaluation_due(self) -> bool:
        t, cursor = self._t, self._t.cursor
        if cursor.step == 0 or t.tally.evaluated_step == cursor.step:
            return False
        epochs_done = cursor.epoch if cursor.consumed == 0 else None
        return cursor.step >= t.total_steps or t.config.config.evaluates(cursor.step, epochs_done)

    def _evaluate(self) -> None:
        t, tally, target = self._t, self._t.tally, self._t.config.stop.target
        tally.metrics = evaluate(t, self._beat)
        self._measure()
        seconds = self._lap()
        tally.evaluated_step = t.cursor.step
        for name, way in t.recipe.metrics.items():
            value = tally.metrics[name]
            tally.best[name] = (max if way == "max" else min)(value, tally.best.get(name, value))
        name, mode = t.watched
        if tally.watched_metric != name:  # the stop rule is another one since the checkpoint
            tally.watched_metric, tally.watched, tally.stale = name, None, 0
        if better(tally.metrics[name], tally.watched, mode):
            tally.watched, tally.best_step, tally.stale = tally.metrics[name], t.cursor.step, 0
            self._keep_best()
            self._lap()  # no part of the next step
        else:
            tally.stale += 1
        if target is not None and self._reached(target):
            tally.target_reached = True  # equal on every rank: the sums are
            tally.time_to_target_s, tally.energy_to_target_j = tally.seconds, tally.joules
        if self._trace is not None:
            self._trace.evaluated(t)
        self._report.evaluated(seconds)

    def _reached(self, target: Target) -> bool:
        value = self._t.tally.metrics[target.metric]
        mode = target.mode or self._t.recipe.metrics[target.metric]
        return value >= target.value if mode == "max" else value <= target.value

    def _save(self) -> None:
        self._lap()
        share_buffers(self._t)
        self._measure()
        saved = self._keeper.save()
        seconds = self._lap()
        self._saved_at = time.monotonic()
        self._beat()
        if saved:
            self._report.saved(seconds)

    def _measure(self) -> None:
        """Every rank's memory and energy. All ranks call it."""
        t, mine = self._t, [float(memory_peak(self._t.device)), self._t.energy.joules()]
        peaks, joules = zip(
            *(rank.tolist() for rank in t.ranks.gather(torch.tensor(mine, dtype=torch.float64))), strict=True
        )
        t.memory_peaks = [int(peak) for peak in peaks]
        known = t.tally.joules is not None and not math.isnan(sum(joules))
        t.tally.joules = t.tally.joules + sum(joules) if known else None

    def _save_is_due(self) -> bool:
        """Rank 0's clock decides for all, by the vote."""
        every_s = self._t.config.checkpoint.every_seconds
        return self._t.ranks.rank == 0 and time.monotonic() - self._saved_at >= every_s

    def _rows(self, epoch: int, consumed: int) -> torch.Tensor:
        """The global batch that begins there: a view of the epoch's order."""
        t = self._t
        if epoch not in self._orders:
            self._orders = {old: rows for old, rows in self._orders.items() if old >= t.cursor.epoch}
            self._orders[epoch] = order(t.cursor.seed, epoch, t.data.train_rows, t.device)[: t.train_rows]
        return self._orders[epoch][consumed : consumed + t.config.config.batch_size]

    def _lap(self) -> float:
        """Seconds since the last lap, added to the trajectory."""
        now = time.monotonic()
        seconds, self._mark = now - self._mark, now
        self._t.tally.seconds += seconds
        return seconds
