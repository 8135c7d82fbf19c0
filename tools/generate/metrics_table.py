"""Every series that Stoker exports: name → type, help, labels. For docs, and for tests of rules and dashboards.

Read off the collectors themselves (the exporter's and the trainer's from their tables), so that a name that is written
down somewhere and nowhere exported is found. Opens no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker.controller.counters import Counters
from stoker.controller.job_rows import JobRows
from stoker.controller.metrics import OperatorMetrics, Reading
from stoker.exporter import catalogue
from stoker.push.relay import FAMILIES as PUSH_FAMILIES
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.job import JOBS
from stoker.spec.meta import Kind
from stoker.spec.node import NODES
from stoker.spec.pod import PODS
from stoker.spec.queue import QUEUES
from stoker.store.cache import WatchCache
from stoker.store.clock import ManualClock
from stoker.worker_sizes import WorkerSizes
from stoker_api.health_metrics import HealthMetrics, StartableJobs
from stoker_api.jobs import progress_metrics
from stoker_api.metrics import ApiMetrics, CodeHeld, GpuPrices, QueueCounts
from stoker_api.scheduler_view import SchedulerView
from stoker_trainer.metrics import FAMILIES, LABELS, PREFIX

TARGET = ("job", "instance")


@dataclass(frozen=True)
class Series:
    name: str
    """As it is scraped, a histogram's without `_bucket`, `_sum` and `_count`."""
    type: str
    help: str
    labels: tuple[str, ...]

    @property
    def samples(self) -> Iterator[tuple[str, frozenset[str]]]:
        """The names in queries, with their labels."""
        if self.type == "histogram":
            yield f"{self.name}_bucket", frozenset((*self.labels, "le"))
            yield f"{self.name}_sum", frozenset(self.labels)
            yield f"{self.name}_count", frozenset(self.labels)
        else:
            yield self.name, frozenset(self.labels)


def operator() -> list[Series]:
    clock, counters = ManualClock(), Counters()
    caches: dict[str, WatchCache[Any]] = {kind.kind: _cache(kind) for kind in (JOBS, PODS, QUEUES)}
    rows = JobRows(caches["TrainingJob"], caches["Pod"], caches["Queue"], clock)
    now = Reading(
        leader=True, reconcile_errors=0, queue_depth=0, queue_delayed=0, scheduling_passes=0, starts=0,
        events_dropped=0, unreadable_jobs=0, objects={}, watch_stale_s={}, calls={},
    )  # fmt: skip
    parts = [value for value in vars(counters).values() if hasattr(value, "_labelnames")]
    exported = {family.name for part in parts for family in part.collect()}
    others = (
        family for family in OperatorMetrics(lambda: now, counters, rows).collect() if family.name not in exported
    )
    return sorted((*map(_series, parts), *map(_series, others)), key=lambda series: series.name)


def api() -> list[Series]:
    caches: dict[str, WatchCache[Any]] = {kind.kind: _cache(kind) for kind in (JOBS, QUEUES)}
    clock = ManualClock()
    queues, nodes = caches["Queue"], _cache(NODES)
    scheduler = SchedulerView(SchedulerFeed(caches["TrainingJob"], queues, nodes), WorkerSizes(queues, nodes, None))
    collectors = (
        QueueCounts(dict, dict, set),
        CodeHeld(lambda: (0, 0)),
        GpuPrices(lambda _model: None, tuple),
        HealthMetrics({}, {}, StartableJobs(scheduler, caches["Queue"], clock), clock),
    )
    own = [value for value in vars(ApiMetrics()).values() if hasattr(value, "_labelnames")]
    progress = (
        Series(name, "gauge", text, progress_metrics.LABELS) for name, text in progress_metrics.FAMILIES.items()
    )
    found = (
        *map(_series, own),
        *progress,
        *(_series(family) for collector in collectors for family in collector.collect()),
    )
    return sorted(found, key=lambda series: series.name)


def exporter() -> list[Series]:
    return [
        Series(prefix + family.name, family.type, family.help, (*shared, *family.labels))
        for prefix, (families, shared) in catalogue.TABLES.items()
        for family in families
    ]


def pushed() -> list[Series]:
    """What operator and api add to what they push."""
    return [Series(name, kind, text, (*TARGET, *labels)) for name, (kind, text, labels) in PUSH_FAMILIES.items()]


def trainer() -> list[Series]:
    return [Series(PREFIX + family.name, family.type, family.help, (*LABELS, *family.labels)) for family in FAMILIES]


def labels_by_name() -> dict[str, frozenset[str]]:
    """The name of each sample → the labels it may have, over all processes."""
    processes = (operator(), api(), pushed(), exporter(), trainer())
    return dict(sample for found in processes for series in found for sample in series.samples)


def markdown(series: Iterable[Series]) -> str:
    rows = ["| name | type | labels | |", "|---|---|---|---|"]
    for one in series:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
    return "\n".join(rows) + "\n"


def _series(metric: Any) -> Series:
    """Of a metric that counts, or of a family that was read."""
    name, kind = getattr(metric, "_name", None) or metric.name, getattr(metric, "_type", None) or metric.type
    text = getattr(metric, "_documentation", None) or metric.documentation
    return Series(name + ("_total" if kind == "counter" else ""), kind, text, tuple(metric._labelnames or ()))


def _cache(kind: Kind[Any]) -> WatchCache[Any]:
    """One that no one runs: it stays empty and asks no store."""
    store: Any = None
    return WatchCache(store, kind, clock=ManualClock())
