"""The operator's own metrics, read from its parts when they are asked for. Called by `main` and `stoker up`.

Names are Prometheus' and in base units. Of several operators only the leader exports jobs and queues; each exports its
own state (leader, watches, caches, requests) and keeps the counters of what it did while it led. A family that can't be
read is left out and counted: it never costs the page.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stoker.spec.node import CORDONED, GPUNode, GPUNodeStatus
from stoker.store.cache import WatchCache

from .counters import Counters
from .job_rows import JobRows
from .operator import Operator

log = logging.getLogger(__name__)


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
    objects: Mapping[str, int]
    """Kind → objects in the cache."""
    watch_stale_s: Mapping[str, float]
    """Kind → seconds since the store last said where it stands."""
    nodes: Iterable[GPUNode] = ()
    calls: Mapping[str, int] | None = None
    """By the seam's name: `kube.create Pod`. None: there is no API server."""
    api_window: int = 0
    api_refusals: int = 0


def reading(
    operator: Operator | None,
    caches: Mapping[str, WatchCache[Any]],
    *,
    leader: bool,
    past_errors: int = 0,
    unreadable_jobs: int = 0,
    nodes: Iterable[GPUNode] = (),
) -> Reading:
    """What operator and caches count now. `operator`: this term's, None: there was none yet; `past_errors`: of earlier
    terms. What is known of an API server comes on top (`dataclasses.replace`)."""
    return Reading(
        leader=leader,
        reconcile_errors=past_errors + (operator.reconcile_errors if operator else 0),
        queue_depth=operator.queue_depth if operator else 0,
        queue_delayed=operator.queue_delayed if operator else 0,
        scheduling_passes=operator.scheduling.passes if operator else 0,
        starts=operator.scheduling.starts if operator else 0,
        events_dropped=operator.recorder.dropped if operator else 0,
        unreadable_jobs=unreadable_jobs,
        objects={name: len(cache) for name, cache in caches.items()},
        watch_stale_s={name: cache.stale_s for name, cache in caches.items()},
        nodes=nodes,
    )


class OperatorMetrics(Collector):
    """`rows`: the leader's series about jobs."""

    def __init__(self, read: Callable[[], Reading], counters: Counters, rows: JobRows) -> None:
        self._read, self._counters, self._rows = read, counters, rows
        self._errors: Counter[str] = Counter({"self": 0, "counters": 0, "jobs": 0})

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        yield from self._safely("self", lambda: _of_itself(now))
        if now.leader:
            for name in self._rows.queue_names():
                self._counters.queue_seen(name)
            yield from self._safely("jobs", self._rows.collect)
        yield from self._safely("counters", self._counters.collect)
        errors = CounterMetricFamily(
            "stoker_operator_metrics_errors", "Scrapes in which a part of this page could not be read.", labels=["part"]
        )
        for part, count in self._errors.items():
            errors.add_metric([part], count)
        yield errors

    def _safely(self, part: str, read: Callable[[], Iterable[Metric]]) -> list[Metric]:
        try:
            return list(read())
        except Exception:
            self._errors[part] += 1
            log.exception("metrics of %s can't be read; the others are exported", part)
            return []


def _of_itself(now: Reading) -> Iterable[Metric]:
    yield _gauge("stoker_operator_leader", "1 while this process leads.", float(now.leader))
    yield _counter("stoker_operator_reconcile_errors", "Reconciles that failed unexpectedly.", now.reconcile_errors)
    yield _gauge("stoker_operator_queue_depth", "Jobs that wait to be reconciled.", now.queue_depth)
    yield _gauge("stoker_operator_queue_delayed", "Jobs to be looked at again later.", now.queue_delayed)
    yield _counter("stoker_operator_scheduling_passes", "Passes of the scheduler.", now.scheduling_passes)
    yield _counter("stoker_operator_starts", "Attempts started.", now.starts)
    yield _counter("stoker_operator_events_dropped", "Events that could not be written.", now.events_dropped)
    yield _gauge(
        "stoker_operator_unreadable_jobs", "Jobs that can't be read; their status says so.", now.unreadable_jobs
    )
    yield _by_kind("stoker_operator_cached_objects", "Objects in the caches.", now.objects)
    yield _by_kind(
        "stoker_operator_watch_stale_seconds",
        "Since the API server last said where it stands; it does so about once a minute. 0 where the store is in the "
        "same process.",
        now.watch_stale_s,
    )
    yield _node_gpus(now.nodes)
    if now.calls is None:
        return
    yield _gauge("stoker_operator_api_window", "Requests that may be under way at once.", now.api_window)
    yield _counter("stoker_operator_api_refusals", "Answers of too many requests, or none.", now.api_refusals)
    calls = CounterMetricFamily("stoker_operator_api_requests", "Requests to the API server.", labels=("verb", "kind"))
    by_verb: Counter[tuple[str, str]] = Counter()
    for name, count in now.calls.items():
        verb, _, kind = name.removeprefix("kube.").partition(" ")
        by_verb[verb, kind] += count
    for (verb, kind), count in sorted(by_verb.items()):
        calls.add_metric((verb, kind), count)
    yield calls


def _node_gpus(nodes: Iterable[GPUNode]) -> Metric:
    family = GaugeMetricFamily(
        "stoker_node_gpus",
        "GPUs of a node, without simulated ones; state: ready, cordoned, lost (its kubelet is silent), not_ready.",
        labels=("node", "state"),
    )
    for node in nodes:
        count = sum(not gpu.simulated for gpu in node.status.gpus)
        if count:
            family.add_metric((node.metadata.name, _state(node.status)), count)
    return family


def _state(status: GPUNodeStatus) -> str:
    if status.lost_since is not None:
        return "lost"
    if status.message == CORDONED:
        return "cordoned"
    return "ready" if status.ready else "not_ready"


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(name, says, value=value)


def _counter(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(name, says, value=value)


def _by_kind(name: str, says: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=("kind",))
    for kind, value in sorted(values.items()):
        family.add_metric((kind,), value)
    return family
