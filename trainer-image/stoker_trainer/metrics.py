"""Owns `/metrics` of a training: rank 0, 127.0.0.1, a daemon thread. Called by the report.

Names as in `docs/trainer.md`; only what this recipe really measures is there. Imported only where a port was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
Series = TypeVar("Series", Counter, Gauge)
_LABELS = ("job", "project", "attempt", "recipe")


class Metrics:
    """Prometheus series of one training. Every series has the labels job, project, attempt and recipe."""

    def __init__(self, env: Mapping[str, str], recipe: str) -> None:
        self.registry = CollectorRegistry()
        self._at = {
            "job": env.get("STOKER_JOB", ""),
            "project": env.get("STOKER_PROJECT", ""),
            "attempt": env.get("STOKER_ATTEMPT", ""),
            "recipe": recipe,
        }
        counter, gauge = self._counter, self._gauge
        self.steps = counter("step", "Optimizer steps done by this attempt")
        self.samples = counter("samples", "Training samples consumed by this attempt, over all ranks")
        self.out_of_memory = counter("oom", "Times that a rank ran out of memory and the micro-batch was halved")
        self.skipped = counter("steps_skipped", "Steps skipped for a gradient that was not finite", ("reason",))
        self.phase_seconds = counter("phase_seconds", "Wall seconds by phase", ("phase",))
        self.step_seconds = Histogram(
            "stoker_train_step_seconds",
            "Wall seconds of a step",
            _LABELS,
            registry=self.registry,
            buckets=_STEP_BUCKETS,
        ).labels(**self._at)
        self.loss = gauge("loss", "Training loss of the newest step that was read")
        self.evaluation = gauge("eval_metric", "Newest result on the test rows", ("name",))
        self.learning_rate = gauge("learning_rate", "Learning rate of the newest step")
        self.gradient_norm = gauge("grad_norm", "Norm of the gradient before clipping")
        self.loss_scale = gauge("loss_scale", "Scale of the loss (1 unless fp16)")
        self.throughput = gauge("throughput_per_second", "Work per second since the report before", ("unit",))
        self.memory_peak = gauge("gpu_memory_peak_bytes", "Most GPU memory allocated by rank 0 so far")
        self.time_to_target = gauge("time_to_target_seconds", "Trajectory seconds until the target metric was reached")
        self.checkpoint_seconds = gauge("checkpoint_seconds", "Wall seconds of the newest checkpoint")
        self.checkpoint_step = gauge("checkpoint_last_step", "Step of the newest checkpoint")
        self.last_step_at = gauge("last_step_timestamp_seconds", "Unix time of the newest step that was read")
        self.progress = gauge("progress_ratio", "Steps done of all steps")
        self.eta = gauge("eta_seconds", "Seconds left at the present speed")

    def serve(self, port: int) -> None:
        """Raises: OSError where the port is taken."""
        start_http_server(port, addr="127.0.0.1", registry=self.registry)

    def with_labels(self, metric: Series, **labels: str) -> Series:
        """The series of a metric that has labels of its own."""
        return metric.labels(**self._at, **labels)

    def _counter(self, name: str, text: str, more: tuple[str, ...] = ()) -> Counter:
        made = Counter(f"stoker_train_{name}", text, _LABELS + more, registry=self.registry)
        return made if more else made.labels(**self._at)

    def _gauge(self, name: str, text: str, more: tuple[str, ...] = ()) -> Gauge:
        made = Gauge(f"stoker_train_{name}", text, _LABELS + more, registry=self.registry)
        return made if more else made.labels(**self._at)
