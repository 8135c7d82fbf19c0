"""What Prometheus finds by `stoker up`: the api, the exporter beside it, and workers that serve metrics.

Called by the api through its own protocol (`stoker_api.ports.Scraping`); picked by `up`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.local.agent.metrics import worker_address
from stoker.local.datadir import DataDir
from stoker.spec.pod import Pod
from stoker_api.ports import ScrapeTarget
from stoker_api.scrape_targets import API_JOB

EXPORTER_JOB = "stoker-exporter"
"""Also what the exporter calls itself when it pushes."""
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class LocalScraping:
    def __init__(
        self, datadir: DataDir, *, host: str, port: int, node: str, exporter_port: Callable[[], int | None]
    ) -> None:
        self._datadir, self._node, self._exporter_port = datadir, node, exporter_port
        # Who listens everywhere is found on loopback, where workers' trainers are, too.
        self._host, self._port = _ANYWHERE.get(host, host), port

    def servers(self) -> Sequence[ScrapeTarget]:
        found = [ScrapeTarget(self._at(self._port), {"job": API_JOB})]
        if exporter := self._exporter_port():
            found.append(ScrapeTarget(self._at(exporter), {"job": EXPORTER_JOB, "instance": self._node}))
        return found

    def worker(self, pod: Pod) -> str | None:
        return worker_address(self._datadir, pod)

    def _at(self, port: int) -> str:
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
