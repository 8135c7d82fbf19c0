"""Owns `/metrics` of a training: rank 0, loopback or a pod's address, a daemon thread. Called by the report.

`FAMILIES` is the whole list, also for docs and dashboards; only what this recipe really measures gets a value. Imported
only where a port was given.
"""

from __future__ import annotations

import ipaddress
import sys
import traceback
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

PREFIX = "stoker_train_"
LABELS = ("project", "job_name", "job_uid", "attempt", "recipe")
"""Every series has them. Never `job`: Prometheus sets that one itself."""
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
Series = TypeVar("Series", Counter, Gauge)


@dataclass(frozen=True)
class Family:
    name: str
    """Without the prefix, as /metrics shows it."""
    type: str
    help: str
    labels: tuple[str, ...] = ()
    """Beside LABELS."""


FAMILIES = (
    Family("step_total", "counter", "Optimizer steps done by this attempt"),
    Family("samples_total", "counter", "Training samples consumed by this attempt, over all ranks"),
    Family("oom_total", "counter", "Times that a rank ran out of memory and the micro-batch was halved"),
    Family("steps_skipped_total", "counter", "Steps skipped for a gradient that was not finite", ("reason",)),
    Family("phase_seconds_total", "counter", "Wall seconds by phase: train, eval, checkpoint", ("phase",)),
    Family(
        "step_phase_seconds_total",
        "counter",
        "Seconds of rank 0's steps by phase: data, forward_backward, reduce, update; on CUDA the device's",
        ("phase",),
    ),
    Family("data_wait_seconds_total", "counter", "Wall seconds that steps waited for their rows, part of phase train"),
    Family("checkpoints_total", "counter", "Checkpoints written by this attempt"),
    Family("checkpointing_seconds_total", "counter", "Wall seconds spent on those checkpoints"),
    Family("step_seconds", "histogram", "Wall seconds of a step; on CUDA the host's side of it"),
    Family("loss", "gauge", "Training loss of the newest step that was read"),
    Family("eval_metric", "gauge", "Newest result on the test rows: accuracy, loss", ("name",)),
    Family("learning_rate", "gauge", "Learning rate of the newest step"),
    Family("grad_norm", "gauge", "Norm of the gradient before clipping"),
    Family("loss_scale", "gauge", "Scale of the loss (1 unless fp16)"),
    Family("throughput_per_second", "gauge", "Work per second since the report before: samples, tokens", ("unit",)),
    Family("flops_ratio", "gauge", "Operations of products, as a share of a peak: datasheet, measured", ("peak",)),
    Family(
        "gpu_memory_peak_bytes",
        "gauge",
        "Most GPU memory that a rank allocated, by evaluation or checkpoint",
        ("rank",),
    ),
    Family("energy_joules", "gauge", "Energy of all ranks' GPUs, by evaluation or checkpoint; rolls back", ("source",)),
    Family("samples_per_joule", "gauge", "Samples trained for that energy", ("source",)),
    Family("energy_to_target_joules", "gauge", "Energy until the target metric was reached", ("source",)),
    Family("time_to_target_seconds", "gauge", "Trajectory seconds until the target metric was reached"),
    Family("checkpoint_seconds", "gauge", "Wall seconds of the newest checkpoint"),
    Family("checkpoint_last_step", "gauge", "Step of the newest checkpoint"),
    Family("last_step_timestamp_seconds", "gauge", "Unix time of the newest step that was read"),
    Family("progress_ratio", "gauge", "Steps done of all steps"),
    Family("eta_seconds", "gauge", "Seconds left at the present speed"),
)
_BY_NAME = {family.name: family for family in FAMILIES}


class Metrics:
    """Prometheus series of one training."""

    def __init__(self, env: Mapping[str, str], recipe: str) -> None:
        self.registry = CollectorRegistry()
        self._at = {
            "project": env.get("STOKER_PROJECT", ""),
            "job_name": env.get("STOKER_JOB", ""),
            "job_uid": env.get("STOKER_JOB_UID", ""),
            "attempt": env.get("STOKER_ATTEMPT", ""),
            "recipe": recipe,
        }
        counter, gauge = self._counter, self._gauge
        self.steps = counter("step_total")
        self.samples = counter("samples_total")
        self.out_of_memory = counter("oom_total")
        self.skipped = counter("steps_skipped_total")
        self.phase_seconds = counter("phase_seconds_total")
        self.step_phase_seconds = counter("step_phase_seconds_total")
        self.data_wait_seconds = counter("data_wait_seconds_total")
        self.checkpoints = counter("checkpoints_total")
        self.checkpointing_seconds = counter("checkpointing_seconds_total")
        self.step_seconds = Histogram(
            *self._naming("step_seconds"), LABELS, registry=self.registry, buckets=_STEP_BUCKETS
        ).labels(**self._at)
        self.loss = gauge("loss")
        self.evaluation = gauge("eval_metric")
        self.learning_rate = gauge("learning_rate")
        self.gradient_norm = gauge("grad_norm")
        self.loss_scale = gauge("loss_scale")
        self.throughput = gauge("throughput_per_second")
        self.memory_peak = gauge("gpu_memory_peak_bytes")
        self.flops_ratio = gauge("flops_ratio")
        self.energy = gauge("energy_joules")
        self.samples_per_joule = gauge("samples_per_joule")
        self.energy_to_target = gauge("energy_to_target_joules")
        self.time_to_target = gauge("time_to_target_seconds")
        self.checkpoint_seconds = gauge("checkpoint_seconds")
        self.checkpoint_step = gauge("checkpoint_last_step")
        self.last_step_at = gauge("last_step_timestamp_seconds")
        self.progress = gauge("progress_ratio")
        self.eta = gauge("eta_seconds")

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Raises: OSError where the port is taken."""
        server, _ = start_http_server(port, addr=host, registry=self.registry)
        server.handle_error = _handle_error  # type: ignore[method-assign]
        if _is_loopback(host):
            server.set_app(_local_only(server.get_app()))

    def with_labels(self, metric: Series, **labels: str) -> Series:
        """The series of a metric that has labels of its own."""
        return metric.labels(**self._at, **labels)

    def _counter(self, name: str) -> Counter:
        own = _BY_NAME[name].labels
        made = Counter(*self._naming(name), LABELS + own, registry=self.registry)
        return made if own else made.labels(**self._at)

    def _gauge(self, name: str) -> Gauge:
        own = _BY_NAME[name].labels
        made = Gauge(*self._naming(name), LABELS + own, registry=self.registry)
        return made if own else made.labels(**self._at)

    def _naming(self, name: str) -> tuple[str, str]:
        return PREFIX + name, _BY_NAME[name].help


def _local_only(app: Any) -> Callable[..., Any]:
    """The app for callers who name this machine: a page in its browser names another that resolves to loopback."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        try:
            name = urllib.parse.urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname or ""
        except ValueError:
            name = ""
        if _is_loopback(name):
            return app(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"these metrics are served on loopback: ask 127.0.0.1 or localhost\n"]

    return answer


def _handle_error(request: Any, client_address: Any) -> None:
    """Into the job's log, unless a scraper has broken off: that is no error of the training's."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
