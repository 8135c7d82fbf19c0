"""What serves metrics, for Prometheus' HTTP service discovery and for what the api pushes.

Owns the labels of targets. Which port of a worker serves metrics comes from a `Scraping`: on a cluster by the pod
itself (`PodScraping`), on one machine by the node agent. Called by `routes/health.py` and `services.py`. Reads caches
only; sending is `stoker.push`'s.

Source: prometheus.io/docs/prometheus/latest/http_sd.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.push.relay import MetricsPage, Relay
from stoker.push.sender import PushOptions
from stoker.spec.pod import METRICS_PORT_NAME, Pod, PodPhase
from stoker.spec.worker_pod import identity

from .deps import Deps
from .ports import ScrapeTarget, Scraping

API_JOB, WORKERS_JOB = "stoker-api", "stoker-workers"


class PodScraping:
    """Implements `ports.Scraping` by what pods say: their address and a port named `metrics`.

    Servers are not found here: the api does not know Stoker's own pods; Kubernetes' discovery does.
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


def server_targets(deps: Deps) -> Sequence[ScrapeTarget]:
    """What of Stoker itself can be scraped and is known here."""
    return _scraping(deps).servers()


def worker_targets(deps: Deps) -> list[ScrapeTarget]:
    """Workers that run and serve metrics, by project and name."""
    found = []
    for pod in sorted(deps.pods.values(), key=lambda pod: pod.key):
        if pod.status.phase is not PodPhase.RUNNING:
            continue
        address, worker = _scraping(deps).worker(pod), identity(pod.metadata)
        if address is None or worker is None:
            continue
        job = deps.jobs.by_uid(worker.job_uid)
        labels = {"job": WORKERS_JOB, **{name: str(value) for name, value in worker._asdict().items()}}
        found.append(ScrapeTarget(address, labels if job is None else {**labels, "queue": job.spec.queue}))
    return found


def _scraping(deps: Deps) -> Scraping:
    return deps.scraping or PodScraping()


@dataclass(frozen=True)
class MetricsPush:
    options: PushOptions
    token_file: Path | None = None
    """For the metrics of other servers, where they need one."""


def relay(deps: Deps, metrics_push: MetricsPush, own: Callable[[], bytes]) -> Relay:
    """`own`: this server's page. Raises: OSError, ssl.SSLError where the CA file can't be used."""
    here = socket.gethostname()

    async def gather() -> Sequence[MetricsPage]:
        found = [MetricsPage({"job": API_JOB, "instance": here}, text=own())]
        token = metrics_push.token_file.read_text().strip() if metrics_push.token_file else ""
        for target in server_targets(deps):
            if target.labels["job"] != API_JOB:
                labels = {**target.labels, "instance": here}
                found.append(MetricsPage(labels, address=target.address, token=token))
        for target in worker_targets(deps):
            # Every machine's loopback is called alike.
            labels = {**target.labels, "instance": target.address.replace("127.0.0.1", here)}
            found.append(MetricsPage(labels, address=target.address, foreign=True))
        return found

    return Relay(metrics_push.options, gather)
