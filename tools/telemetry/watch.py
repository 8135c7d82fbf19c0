"""The run's own records: jobs as REST tells them, pages of metrics read beside Prometheus. Owns two threads.

Used for what only the processes themselves can tell (requests, passes, loss). What REST or the scenario tells is taken
from there. A page is kept whole: (unix seconds, {(name, labels): value}).
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from stoker.spec.job import TrainingJob
from tests.support.harness import Server

Labels = frozenset[tuple[str, str]]
Page = dict[tuple[str, Labels], float]
EVERY_S = 1.0
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parsed(text: str) -> Page:
    found: Page = {}
    for line in text.splitlines():
        if line.startswith("stoker_") and (sample := _SAMPLE.match(line)):
            found[sample[1], frozenset(_LABEL.findall(sample[2] or ""))] = float(sample[3])
    return found


class Pages:
    """One target's pages in the order in which they were read."""

    def __init__(self) -> None:
        self.read: list[tuple[float, Page]] = []

    def course(self, name: str, **wanted: str) -> list[tuple[float, float]]:
        """The sum of the series that match, at each reading; absent is 0."""
        return [
            (
                at,
                sum(
                    value
                    for (one, labels), value in page.items()
                    if one == name and wanted.items() <= dict(labels).items()
                ),
            )
            for at, page in self.read
        ]

    def values(self, name: str, label: str) -> set[str]:
        return {dict(labels).get(label, "") for _, page in self.read for one, labels in page if one == name}

    def last(self, name: str, **wanted: str) -> float:
        found = self.course(name, **wanted)
        return found[-1][1] if found else 0.0


class Watch:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._token = (server.data / "scrape.token").read_text().strip()
        self.pages: dict[str, Pages] = {"api": Pages()}
        """api, exporter, and a job's name for its worker's page."""
        self.jobs: list[tuple[float, dict[str, TrainingJob]]] = []
        """Name → job at each look. Names are used once in a run."""
        self.failed: BaseException | None = None
        self._ends = threading.Event()
        looks = (self._list, self._read_all)
        self._threads = [threading.Thread(target=self._run, args=(look,), daemon=True) for look in looks]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(30)
        if self.failed is not None:
            raise self.failed

    def newest(self) -> dict[str, TrainingJob]:
        return self.jobs[-1][1]

    def _run(self, look: Callable[[], None]) -> None:
        try:
            while True:
                began = time.monotonic()
                look()
                if self._ends.wait(max(0.1, EVERY_S - (time.monotonic() - began))):
                    return
        except BaseException as error:  # noqa: BLE001 (told by stop)
            self.failed = error

    def _list(self) -> None:
        with self._server.client() as client:
            jobs = {job.metadata.name: job for job in client.list(project="-")}
        self.jobs.append((time.time(), jobs))

    def _read_all(self) -> None:
        with contextlib.suppress(OSError):  # a machine so busy that nobody answers: the next look will do
            for name, url in self._targets():
                self._read(name, url)

    def _targets(self) -> Iterator[tuple[str, str]]:
        yield "api", f"{self._server.url}/metrics"
        for group in self._discovered("servers"):
            if group["targets"][0] not in self._server.url:
                yield "exporter", f"http://{group['targets'][0]}/metrics"
        for group in self._discovered("workers"):
            yield group["labels"]["job_name"], f"http://{group['targets'][0]}/metrics"

    def _discovered(self, role: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._get(f"{self._server.url}/v1/sd/prometheus?role={role}"))
        return found

    def _read(self, name: str, url: str) -> None:
        try:
            text = self._get(url)
        except OSError:
            return  # a worker that has just ended
        self.pages.setdefault(name, Pages()).read.append((time.time(), parsed(text)))

    def _get(self, url: str) -> str:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())
