"""The operator's own metrics, read from its parts when they are asked for. Called by `main`.

Names are Prometheus' and in base units; nothing here is kept beside what the parts count anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True)
class Reading:
    """One moment's numbers."""

    leader: bool
    reconcile_errors: int
    queue_depth: int
    queue_delayed: int
    scheduling_passes: int
    starts: int
    events_dropped: int
    unreadable_jobs: int
    api_window: int
    api_refusals: int
    calls: Mapping[str, int]
    """By the seam's name: `kube.create Pod`."""
    objects: Mapping[str, int]
    """Kind → objects in the cache."""


class OperatorMetrics(Collector):
    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        yield _gauge("stoker_operator_leader", "1 while this process leads.", float(now.leader))
        yield _counter("stoker_operator_reconcile_errors", "Reconciles that failed unexpectedly.", now.reconcile_errors)
        yield _gauge("stoker_operator_queue_depth", "Jobs that wait to be reconciled.", now.queue_depth)
        yield _gauge("stoker_operator_queue_delayed", "Jobs to be looked at again later.", now.queue_delayed)
        yield _counter("stoker_operator_scheduling_passes", "Passes of the scheduler.", now.scheduling_passes)
        yield _counter("stoker_operator_starts", "Attempts started.", now.starts)
        yield _counter("stoker_operator_events_dropped", "Events that could not be written.", now.events_dropped)
        yield _gauge("stoker_operator_unreadable_jobs", "Jobs told that they can't be read.", now.unreadable_jobs)
        yield _gauge("stoker_operator_api_window", "Requests that may be under way at once.", now.api_window)
        yield _counter("stoker_operator_api_refusals", "Answers of too many requests, or none.", now.api_refusals)
        calls = CounterMetricFamily(
            "stoker_operator_api_requests", "Requests to the API server.", labels=("verb", "kind")
        )
        by_verb: Counter[tuple[str, str]] = Counter()
        for name, count in now.calls.items():
            verb, _, kind = name.removeprefix("kube.").partition(" ")
            by_verb[verb, kind] += count
        for (verb, kind), count in sorted(by_verb.items()):
            calls.add_metric((verb, kind), count)
        yield calls
        objects = GaugeMetricFamily("stoker_operator_cached_objects", "Objects in the caches.", labels=("kind",))
        for kind, count in sorted(now.objects.items()):
            objects.add_metric((kind,), count)
        yield objects


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(name, says, value=value)


def _counter(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(name, says, value=value)
