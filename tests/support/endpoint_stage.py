"""The whole exporter (parent and NVML child) on a scenario of the fake NVML, scraped over HTTP from before to after.

Owns playing one case and what was scraped meanwhile. Judges nothing: `tests/exporter/test_endpoint_scenarios.py` does.
The cases: `endpoint_scenarios`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.exporter_process import Exporter, worker
from tests.support.harness import until
from tests.support.nvml_scenario import Gpu, Scenario

SCRAPE_EVERY_S = 0.15

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Scrape:
    began_at: float
    ended_at: float
    """Unix seconds."""
    text: str
    """Of an answer 200."""
    children: tuple[int, ...]
    """Pids of NVML children that lived."""

    @cached_property
    def values(self) -> dict[Key, float]:
        """Name and labels → value. Raises: ValueError if it is no exposition text."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def of(self, name: str, **labels: str) -> list[float]:
        wanted = labels.items()
        return [value for (one, own), value in self.values.items() if one == name and wanted <= dict(own).items()]

    def one(self, name: str, **labels: str) -> float | None:
        """Raises: ValueError if there are several."""
        found = self.of(name, **labels)
        if len(found) > 1:
            raise ValueError(f"{len(found)} series of {name} {labels}")
        return found[0] if found else None

    def families(self, gpu: str = "0") -> set[str]:
        """That this GPU's series are of, and those of no GPU."""
        return {name for name, own in self.values if dict(own).get("gpu", gpu) == gpu}


class Stage:
    """A scenario, the exporter on it and its scraper."""

    def __init__(self, folder: Path) -> None:
        self.scenario = Scenario(folder)
        self.environment: dict[str, str] = {}
        self.workers = folder / "workers"
        self.scrapes: list[Scrape] = []
        self.failures: list[str] = []
        self.during: Scrape | None = None
        self.after: Scrape | None = None
        self.struck_at = 0.0
        self.exporter: Exporter
        self.cleanup = contextlib.ExitStack()
        self._over = threading.Event()

    @property
    def gpus(self) -> list[Gpu]:
        return self.scenario.gpus

    def scrape(self) -> Scrape:
        """The newest."""
        seen = len(self.scrapes)
        until(lambda: len(self.scrapes) > seen or self.failures, "a scrape")
        return self.scrapes[-1]

    def until(self, condition: Callable[[Scrape], object], what: str) -> Scrape:
        """The first scrape that answers to the condition."""
        found: list[Scrape] = []

        def holds() -> bool:
            found[:] = [self.scrape()]
            return bool(condition(found[0]))

        until(holds, f"{what}; the exporter said {''.join(self.exporter.said)[-1500:]}")
        return found[0]

    def counted(self, reason: str, times: int = 1) -> Scrape:
        """Once so many children were replaced for that reason."""
        return self.until(
            lambda now: (now.one("stoker_exporter_child_restarts_total", reason=reason) or 0) >= times,
            f"{times} restarts: {reason}",
        )

    @contextlib.contextmanager
    def scraping(self) -> Iterator[None]:
        thread = threading.Thread(target=self._scrape, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(30)

    def _scrape(self) -> None:
        while not self._over.wait(SCRAPE_EVERY_S):
            began_at = time.time()
            try:
                url = f"http://127.0.0.1:{self.exporter.port}/metrics"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    text = answer.read().decode()
                self.scrapes.append(Scrape(began_at, time.time(), text, tuple(children(self.exporter.process.pid))))
            except (OSError, ValueError) as error:
                self.failures.append(repr(error))


def children(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def energy_counted(now: Scrape) -> object:
    return now.of("stoker_job_gpu_energy_joules_total")


def nothing(_: Stage) -> None:
    return None


@dataclass(frozen=True)
class Case:
    title: str
    what: str
    prepare: Callable[[Stage], object]
    strike: Callable[[Stage], Scrape | None] = nothing
    """Makes it happen; returns the scrape that shows it."""
    heal: Callable[[Stage], object] = nothing
    begins: Callable[[Scrape], object] = lambda now: energy_counted(now) and now.of("stoker_gpu_sm_active_ratio")
    """The page is whole, as far as this scenario lets it be: before `strike`."""
    options: tuple[str, ...] = ()
    begins_anew: bool = False
    """The hardware's counters, as the driver's own."""
    outage: bool = False
    """Its time is unobserved, and that is on the page in the end."""


@dataclass(frozen=True)
class Played:
    stage: Stage
    before: Scrape
    during: Scrape
    after: Scrape
    all: list[Scrape] = field(repr=False)


def play(case: Case, folder: Path) -> Played:
    """Raises: AssertionError naming what did not come."""
    stage = Stage(folder)
    stage.workers.mkdir()
    case.prepare(stage)
    environment = stage.environment or stage.scenario.write().env()
    options = ["--state", str(folder / "state"), "--allocation", "workers", "--workers", str(stage.workers)]
    held = (
        stage.gpus[0].devices[0].uuid
        if stage.gpus and stage.gpus[0].devices
        else "GPU-00000000-5afe-4000-8000-000000000000"
    )
    with (
        stage.cleanup,
        worker(stage.workers, "a", [held]),
        Exporter("--stuck-after", "3s", *options, *case.options, env=environment) as stage.exporter,
        stage.scraping(),
    ):
        before = stage.until(case.begins, "the begin")
        stage.struck_at = time.time()
        during = case.strike(stage) or before
        case.heal(stage)
        after = stage.until(lambda now: _whole_again(case, before, now), "the page as before")
    return Played(stage, before, during, after, stage.scrapes)


def _whole_again(case: Case, before: Scrape, now: Scrape) -> bool:
    """All families are there again, and the books (which are shown when they are on disk) show the outage."""
    accounted = (one.of("stoker_gpu_account_seconds_total", gpu="0", account="unobserved") for one in (before, now))
    return before.families() <= now.families() and (not case.outage or next(accounted) < next(accounted))
