"""What the api measures about itself, and the queues' state at scrape: names, labels, help texts.

One registry per app, not the process's: two apps in one process (tests, `stoker up`) do not collide. Labels never name
a job, and never collide with what Prometheus adds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class QueueCounts(Collector):
    """Jobs by queue and phase, and GPUs held after failures, counted when scraped: of queues that there are (a job may
    name any)."""

    def __init__(
        self,
        counts: Callable[[], Mapping[tuple[str, str], int]],
        held_gpus: Callable[[], Mapping[str, int]],
        queues: Callable[[], Collection[str]],
    ) -> None:
        """`queues`: their names."""
        self._counts, self._held_gpus, self._queues = counts, held_gpus, queues

    def collect(self) -> Iterator[GaugeMetricFamily]:
        there, found = self._queues(), dict[tuple[str, str], int]()
        for (queue, phase), count in self._counts().items():
            labels = queue if queue in there else "", phase
            found[labels] = found.get(labels, 0) + count
        family = GaugeMetricFamily(
            "stoker_queue_jobs",
            "Jobs by queue and phase; queue is empty where there is no such queue.",
            labels=["queue", "phase"],
        )
        for labels, count in sorted(found.items()):
            family.add_metric(labels, count)
        yield family
        held = GaugeMetricFamily("stoker_queue_held_gpus", "GPUs of failed jobs kept by hold.", labels=["queue"])
        for queue, gpus in sorted(self._held_gpus().items()):
            held.add_metric([queue], gpus)
        yield held


class CodeHeld(Collector):
    """What users' code takes, read when scraped."""

    def __init__(self, held: Callable[[], tuple[int, int]]) -> None:
        """`held`: how many bundles, how many bytes."""
        self._held = held

    def collect(self) -> Iterator[GaugeMetricFamily]:
        bundles, held = self._held()
        yield GaugeMetricFamily("stoker_api_code_bundles", "Bundles of users' code that are held.", value=bundles)
        yield GaugeMetricFamily("stoker_api_code_held_bytes", "Bytes that users' code takes.", value=held)


class GpuPrices(Collector):
    """What a GPU-hour costs, of each model there is that has a price."""

    def __init__(self, price_of: Callable[[str], float | None], models: Callable[[], Iterable[str]]) -> None:
        self._price_of, self._models = price_of, models

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("stoker_gpu_hour_price", "Price of an hour of a GPU of the model.", labels=["model"])
        for model in sorted(set(self._models())):
            price = self._price_of(model)
            if price is not None:
                family.add_metric([model], price)
        yield family


class ApiMetrics:
    def __init__(self, collectors: Iterable[Collector] = (), written: Callable[[], bytes] = lambda: b"") -> None:
        """`written`: further families in Prometheus' text format, too many for the registry."""
        self._written = written
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "stoker_api_request_seconds",
            "Time from a request to the start of its answer.",
            ["route", "method", "code"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.connections = self._gauge("stoker_api_connections", "Connections that are open now.")
        self.refused = self._counter(
            "stoker_api_connections_refused_total",
            "Connections refused before there was a request, by the problem's code, or closed for others (Evicted).",
            "reason",
        )
        for reason in ("BadRequest", "Evicted", "HeadersTooLarge", "RequestTimeout", "Unavailable"):
            self.refused.labels(reason)
        self.streams = self._gauge("stoker_api_streams", "Streams being followed now.", "kind")
        self.shed = self._counter(
            "stoker_api_streams_shed_total", "Followers cut off because they did not read.", "kind"
        )
        self.reports = self._outcomes(
            "stoker_api_progress_reports_total", "Progress reports", "taken", "stale", "refused"
        )
        self.progress_writes = self._counter("stoker_api_progress_writes_total", "Writes of progress into job status.")
        self.log_bytes = self._counter(
            "stoker_api_log_bytes_total", "Bytes of logs that workers posted and the api took."
        )
        self.log_posts = self._outcomes(
            "stoker_api_log_posts_total", "Posts of logs", "taken", "gap", "full", "refused"
        )
        self.code_bytes = self._counter(
            "stoker_api_code_bytes_total", "Bytes of users' code: received and stored, sent to workers.", "direction"
        )
        self.alive_posts = self._counter(
            "stoker_api_alive_posts_total",
            "Workers that asked whether they are still wanted, by the answer (wanted, stop, refused).",
            "outcome",
        )
        self.sessions = self._gauge("stoker_api_sessions", "Sessions of callers with workers, open now.", "kind")
        self.session_outcomes = self._counter(
            "stoker_api_sessions_asked_total",
            "Sessions by what became of them (opened, invalid, unanswered).",
            "kind",
            "outcome",
        )
        self.receipts = self._outcomes(
            "stoker_api_receipts_total", "Exporters' receipts", "taken", "stale", "refused", "unavailable"
        )
        self.curve_samples = self._outcomes(
            "stoker_api_curve_samples_total", "Reports of jobs' metrics", "kept", "thinned", "dropped"
        )
        self.gpu_events = self._counter(
            "stoker_api_gpu_events_total",
            "GPU events that exporters reported (xid, lost, recovered, recovery_action, mig_changed).",
            "kind",
        )
        for collector in collectors:
            self.registry.register(collector)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _outcomes(self, name: str, what: str, *outcomes: str) -> Counter:
        counter = self._counter(name, f"{what} by what became of them ({', '.join(outcomes)}).", "outcome")
        for outcome in outcomes:
            counter.labels(outcome)  # begins at 0, so that the first one is a rise too
        return counter

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).observe(seconds)

    def text(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self.registry) + self._written()
