"""Owns what the outside sees of a training: progress file, log lines, ledger, `/metrics`, TensorBoard. Called by the
loop on rank 0 (others have `Silent`).

Failing to report never stops training: a full disk or a taken port is logged once and left. The device is read here and
at most once a second, never per step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .files import replace_json
from .ledger import Ledger
from .measure import datasheet_flops, flops_of_sample, product_flops, verdict
from .save import Keeper
from .tokens import Tokens
from .training import Training

if TYPE_CHECKING:
    from .metrics import Metrics
    from .tensorboard import Board

EVERY_S = 1.0
log = logging.getLogger(__name__)


class Silent:
    """The report of a rank that does not report."""

    def waited(self, seconds: float) -> None: ...

    def stepped(self, samples: int, seconds: float) -> None: ...

    def halved(self) -> None: ...

    def evaluated(self, seconds: float) -> None: ...

    def saved(self, seconds: float) -> None: ...

    def publish(self) -> None: ...


class Report(Silent):
    def __init__(
        self,
        training: Training,
        keeper: Keeper,
        ledger: Ledger,
        path: Path | None,
        metrics: Metrics | None,
        board: Board | None = None,
    ) -> None:
        self._board = board
        self._t, self._keeper, self._ledger, self._path, self._metrics = training, keeper, ledger, path, metrics
        self.weights: str | None = None
        self._resumed_step = training.cursor.step
        self._window_samples, self._window_s, self._speed = 0, 0.0, 0.0
        self._samples, self._step_s = 0, 0.0
        self._skipped = self._exported_skips = training.scaler.skipped()
        flops, gpu = flops_of_sample(training.recipe, training.data, training.device), _device_name(training)
        world, precision = training.ranks.world, training.precision
        peaks = {"datasheet": datasheet_flops(gpu, precision), "measured": product_flops(precision, training.device)}
        if training.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(training.device)
        self._seconds_at_peak = {name: flops / (peak * world) for name, peak in peaks.items() if peak}
        """For one sample."""
        self._phases = training.clock.read()
        self._due = 0.0
        self._warned = False

    def stepped(self, samples: int, seconds: float) -> None:
        """After each step, whose position is already counted."""
        mine = self._ledger.mine
        mine.steps += 1
        mine.samples += samples
        mine.seconds += seconds
        self._samples += samples
        self._step_s += seconds
        self._window_samples += samples
        self._window_s += seconds
        if self._metrics is not None:
            self._metrics.steps.inc()
            self._metrics.samples.inc(samples)
            self._metrics.step_seconds.observe(seconds)
            self._metrics.with_labels(self._metrics.phase_seconds, phase="train").inc(seconds)
        if time.monotonic() >= self._due:
            self.publish()

    def waited(self, seconds: float) -> None:
        """A step had to wait so long for its rows."""
        if self._metrics is not None:
            self._metrics.data_wait_seconds.inc(seconds)

    def halved(self) -> None:
        log.warning("out of memory: the micro-batch is %d samples from here on", self._t.micro_batch)
        if self._metrics is not None:
            self._metrics.out_of_memory.inc()

    def evaluated(self, seconds: float) -> None:
        self._spent("eval", seconds)
        t = self._t
        epochs = math.ceil(t.total_steps / t.config.config.steps_per_epoch(t.train_rows))
        log.info(
            "epoch %d/%d  step %d/%d  loss %.4f  %s  %.0f samples/s",
            min(t.cursor.epoch, epochs),
            epochs,
            t.cursor.step,
            t.total_steps,
            t.loss.item(),
            metrics_text(t.tally.metrics),
            self._samples / self._step_s if self._step_s else 0.0,
        )
        self.publish()

    def saved(self, seconds: float) -> None:
        self._spent("checkpoint", seconds)
        if self._metrics is not None:
            self._metrics.checkpoints.inc()
            self._metrics.checkpointing_seconds.inc(seconds)
            self._metrics.checkpoint_seconds.set(seconds)
            self._metrics.checkpoint_step.set(self._t.cursor.step)
        self.publish()

    def publish(self) -> None:
        """Reads the device and shows it to all ranks."""
        self._due = time.monotonic() + EVERY_S
        if self._window_s > 0:
            self._speed = self._window_samples / self._window_s
            self._window_samples, self._window_s = 0, 0.0
        values, self._skipped = self._values(), self._t.scaler.skipped()
        phases, before = self._t.clock.read(), self._phases
        self._phases = phases
        if self._metrics is not None:
            for name, seconds in phases.items():
                of_phase = self._metrics.with_labels(self._metrics.step_phase_seconds, phase=name)
                of_phase.inc(max(0.0, seconds - before[name]))
        try:
            self._ledger.write()
            if self._path is not None:
                replace_json(self._path, self.progress(values), sync=False)
            if self._board is not None:
                t = self._t
                old = self._measured() if t.tally.evaluated_step != t.cursor.step else {}
                self._board.show(t.cursor.step, {name: v for name, v in values.items() if name not in old})
        except OSError as error:
            if not self._warned:
                log.error("progress can't be written, training goes on: %s", error)
            self._warned = True
        if self._metrics is not None:
            self._export(self._metrics, values)

    def progress(self, values: Mapping[str, float]) -> dict[str, Any]:
        """The contract's Progress (`stoker.spec.worker`), as JSON."""
        t, checkpoint = self._t, None
        if self._keeper.step is not None and self._keeper.path is not None:
            checkpoint = {"step": self._keeper.step, "path": str(self._keeper.path)}
        return {
            "at": time.time(),
            "step": t.cursor.step,
            "totalSteps": t.total_steps,
            "epoch": t.cursor.epoch,
            "samples": t.tally.samples,
            "metrics": values,
            "checkpoint": checkpoint,
            "summary": self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """What the end table shows. `trainS` is the trajectory's; `lost…` was spent and rolled back."""
        t, spent = self._t, self._ledger.total()
        return {
            "accuracy": t.tally.metrics.get("accuracy"),
            "bestAccuracy": t.tally.best.get("accuracy"),
            "metrics": dict(t.tally.metrics),
            "best": dict(t.tally.best),
            "bestStep": t.tally.best_step,
            "ended": t.ended,
            "targetReached": t.tally.target_reached,
            "timeToTargetS": _rounded(t.tally.time_to_target_s),
            "trainS": _rounded(t.tally.seconds),
            "samplesPerSecond": _rounded(self._samples / self._step_s) if self._step_s else None,
            **self._measures(),
            "data": t.config.config.data,
            "trainRows": t.data.train_rows,
            "testRows": t.data.test_rows,
            **t.data.facts,
            "weights": self.weights,
            "device": _device_name(t),
            "precision": t.precision,
            "worldSize": t.ranks.world,
            "microBatch": t.micro_batch,
            "peakLearningRate": t.rule.learning_rate,
            "tuningS": _rounded(t.tuned.seconds),
            "skippedSteps": self._skipped,
            "resumedFromStep": self._resumed_step,
            "lostSteps": max(0, spent.steps - t.cursor.step),
            "lostS": _rounded(max(0.0, spent.seconds - t.tally.seconds)),
        }

    def _measures(self) -> dict[str, Any]:
        t, tally = self._t, self._t.tally
        speed = self._samples / self._step_s if self._step_s else None
        rates = {name: seconds * (speed or 0.0) for name, seconds in self._seconds_at_peak.items()}
        idle = t.clock.idle / t.clock.steps if t.device.type == "cuda" and t.clock.steps else None
        judged = verdict(self._phases, idle, rates["measured"] if speed else None)
        return {
            "tokensPerSecond": _rounded(speed * t.data.context) if speed and isinstance(t.data, Tokens) else None,
            "etaS": _rounded(self._left_s()),
            "phasesS": {name: round(seconds, 3) for name, seconds in self._phases.items()},
            "bound": judged.bound if judged else None,
            "boundBecause": judged.because if judged else None,
            "flopsRatio": {name: round(rate, 4) for name, rate in rates.items()} if speed else None,
            "memoryPeakBytes": t.memory_peaks,
            "joules": _rounded(tally.joules) or None,
            "samplesPerJoule": _rounded(tally.samples / tally.joules) if tally.joules else None,
            "energyToTargetJ": _rounded(tally.energy_to_target_j),
        }

    def _left_s(self) -> float | None:
        """Seconds to the last step at the present speed."""
        left = (self._t.total_steps - self._t.cursor.step) * self._t.config.config.batch_size
        return left / self._speed if self._speed else None

    def _values(self) -> dict[str, float]:
        t = self._t
        values = {"lossScale": t.scaler.scale.item()}
        if self._samples:  # before this attempt's first step there is no loss, and 0 would be a wrong one
            values |= {
                "loss": t.loss.item(),
                "learningRate": t.learning_rate,
                "gradNorm": t.gradient_norm.item(),
                "samplesPerSecond": round(self._speed, 1),
            }
        values |= self._measured()
        # JSON knows no NaN, and a diverging loss must not make the file unreadable.
        return {name: float(v) for name, v in values.items() if abs(v) < float("inf")}

    def _measured(self) -> dict[str, float]:
        return {"testLoss" if name == "loss" else name: value for name, value in self._t.tally.metrics.items()}

    def _spent(self, phase: str, seconds: float) -> None:
        self._ledger.mine.seconds += seconds
        if self._metrics is not None:
            self._metrics.with_labels(self._metrics.phase_seconds, phase=phase).inc(seconds)

    def _export(self, m: Metrics, values: Mapping[str, float]) -> None:
        t = self._t
        if self._samples:
            m.loss.set(t.loss.item())
            m.learning_rate.set(t.learning_rate)
            m.gradient_norm.set(t.gradient_norm.item())
        m.loss_scale.set(values["lossScale"])
        m.with_labels(m.throughput, unit="samples").set(self._speed)
        m.last_step_at.set(time.time())
        m.progress.set(t.cursor.step / t.total_steps)
        if self._speed:
            m.eta.set(self._left_s() or 0.0)
            for name, seconds in self._seconds_at_peak.items():
                m.with_labels(m.flops_ratio, peak=name).set(seconds * self._speed)
            if isinstance(t.data, Tokens):
                m.with_labels(m.throughput, unit="tokens").set(self._speed * t.data.context)
        m.with_labels(m.skipped, reason="nonfinite").inc(max(0, self._skipped - self._exported_skips))
        self._exported_skips = self._skipped
        for name, value in t.tally.metrics.items():
            m.with_labels(m.evaluation, name=name).set(value)
        if t.tally.time_to_target_s is not None:
            m.time_to_target.set(t.tally.time_to_target_s)
            if t.tally.energy_to_target_j is not None:
                m.with_labels(m.energy_to_target, source="nvml").set(t.tally.energy_to_target_j)
        if t.device.type == "cuda":
            for rank, peak in enumerate(t.memory_peaks):
                m.with_labels(m.memory_peak, rank=str(rank)).set(peak)
        if t.tally.joules:
            m.with_labels(m.energy, source="nvml").set(t.tally.joules)
            m.with_labels(m.samples_per_joule, source="nvml").set(t.tally.samples / t.tally.joules)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """'accuracy 97.18 %  test loss 0.1042'."""
    shown = {"accuracy": "accuracy {:.2%}", "loss": "test loss {:.4f}"}
    parts = (shown.get(name, name + " {:.4g}").format(value) for name, value in metrics.items())
    return "  ".join(parts).replace("%", " %")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _device_name(training: Training) -> str:
    if training.device.type != "cuda":
        return "cpu"
    return str(torch.cuda.get_device_name(training.device))
