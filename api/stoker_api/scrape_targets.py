"""What Prometheus is to scrape, in the words of its HTTP service discovery.

Owns the labels of targets. Which port of a worker serves metrics is told by a `Scraping`: on a cluster by the pod
itself (`PodScraping`), on one machine by the node agent. Called by `routes/discovery.py`. Reads caches only.

Source: prometheus.io/docs/prometheus/latest/http_sd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stoker.spec.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_QUEUE, LABEL_WORKER
from stoker.spec.pod import METRICS_PORT_NAME, Pod, PodPhase

from .deps import Deps
from .ports import ScrapeTarget, Scraping

WORKERS_JOB = "stoker-workers"
_LABELS = {
    "job_name": LABEL_JOB,
    "job_uid": LABEL_JOB_UID,
    "attempt": LABEL_ATTEMPT,
    "worker": LABEL_WORKER,
    "queue": LABEL_QUEUE,
}


class PodScraping:
    """Implements `ports.Scraping` by what pods say: their address and a port named `metrics`.

    Servers find nobody here: Stoker's own pods are not the api's to know; Kubernetes' discovery is for that.
    """

    def servers(self) -> Sequence[ScrapeTarget]:
        return ()

    def worker(self, pod: Pod) -> str | None:
        address = pod.status.pod_ip
        if not address:
            return None
        host = f"[{address}]" if ":" in address else address
        ports = [port for container in pod.spec.containers for port in container.ports or ()]
        return next((f"{host}:{port.container_port}" for port in ports if port.name == METRICS_PORT_NAME), None)


def server_targets(deps: Deps) -> list[dict[str, Any]]:
    """What of Stoker itself can be scraped and is known here."""
    return [_entry(target) for target in _scraping(deps).servers()]


def worker_targets(deps: Deps) -> list[dict[str, Any]]:
    """Workers that run and serve metrics, by project and name."""
    return [_entry(target) for target in _workers(deps)]


def _workers(deps: Deps) -> Iterator[ScrapeTarget]:
    for pod in sorted(deps.pods.values(), key=lambda pod: pod.key):
        if pod.status.phase is not PodPhase.RUNNING:
            continue
        address = _scraping(deps).worker(pod)
        if address is None:
            continue
        own = {name: pod.metadata.labels.get(label, "") for name, label in _LABELS.items()}
        labels = {"job": WORKERS_JOB, "project": pod.metadata.namespace or "", **own}
        yield ScrapeTarget(address, {name: value for name, value in labels.items() if value})


def _scraping(deps: Deps) -> Scraping:
    return deps.scraping or PodScraping()


def _entry(target: ScrapeTarget) -> dict[str, Any]:
    return {"targets": [target.address], "labels": dict(target.labels)}
