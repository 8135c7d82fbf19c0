"""A few hours of a small cluster that never was, in a real Prometheus: for tests of dashboards.

Owns the story (`JOBS`): a straggler, a job that idles, one that was preempted, one that failed, small ones on MIG
devices and old GPUs without SM activity, a GPU that is lost, exporters that are restarted, two operators of which
the other leads after a while. The figures are plausible and made up; figures in docs come from elsewhere.

Written as OpenMetrics text and turned into blocks by promtool. Called by the tests of dashboards.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.testbed import monitoring

STEP_S = 30.0
GIB = 2**30
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Model:
    name: str
    memory_gib: int
    limit_w: float
    idle_w: float
    tells_sm: bool
    price: float


H200 = Model("NVIDIA H200", 141, 700, 75, True, 3.2)
A100 = Model("NVIDIA A100-SXM4-40GB", 40, 400, 50, False, 1.1)
NODES = {"gpu-h-01": (8, H200), "gpu-h-02": (8, H200), "gpu-a-01": (4, A100)}
LOST = ("gpu-a-01", 3)


@dataclass(frozen=True)
class Run:
    """One attempt: from and to as shares of the time; GPUs by node."""

    begin: float
    end: float
    gpus: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Job:
    project: str
    name: str
    user: str
    queue: str
    runs: tuple[Run, ...]
    sm: float
    memory: float
    idle: str = ""
    """The class in which it idles all the time."""
    straggler: int = -1
    ending: tuple[str, str] = ("Done", "None")

    @property
    def uid(self) -> str:
        return f"{hash_of(self.name):08x}-5a3e-4b61-9d0c-{hash_of(self.user):012x}"


def hash_of(text: str) -> int:
    """The same in every process."""
    return zlib.crc32(text.encode())


def _gpus(node: str, *numbers: int) -> tuple[tuple[str, int], ...]:
    return tuple((node, number) for number in numbers)


JOBS = (
    Job("vision", "resnet-sweep", "ada", "research", (Run(0, 1.1, _gpus("gpu-h-01", 0, 1, 2, 3)),), 0.62, 0.7,
        straggler=2),
    Job(
        "language", "pretrain-7b", "grace", "production",
        (Run(0.1, 0.45, _gpus("gpu-h-02", 0, 1, 2, 3)), Run(0.5, 1.1, _gpus("gpu-h-02", 4, 5, 6, 7))), 0.81, 0.93,
        ending=("Interrupted", "Preempt"),
    ),
    Job("vision", "notebook", "edsger", "research", (Run(0.05, 1.1, _gpus("gpu-h-01", 4, 5)),), 0.0, 0.02,
        idle="no_process"),
    Job("speech", "asr-finetune", "barbara", "default", (Run(0.2, 0.7, _gpus("gpu-h-01", 6)),), 0.24, 0.18,
        ending=("OutOfMemory", "None")),
    Job("speech", "tiny-eval", "barbara", "default", (Run(0.3, 1.1, _gpus("gpu-a-01", 0, 1)),), 0.4, 0.2),
)  # fmt: skip


class Book:
    """Samples by series, in order of time; counters are added up. `shared`: labels of every series."""

    def __init__(self, **shared: str) -> None:
        self._shared = shared
        self.series: dict[tuple[str, Labels], list[tuple[float, float]]] = {}
        self._sums: dict[tuple[str, Labels], float] = {}

    def gauge(self, at: float, name: str, value: float, **labels: object) -> None:
        self._note((name, _labels({**self._shared, **labels})), at, value)

    def add(self, at: float, name: str, more: float, **labels: object) -> None:
        """The label `pod` is of the process that reports it; the sum goes on from one to the next."""
        whose = (name, _labels({label: value for label, value in labels.items() if label != "pod"}))
        self._sums[whose] = self._sums.get(whose, 0.0) + more
        self._note((name, _labels({**labels, **self._shared})), at, self._sums[whose])

    def total(self, name: str, **labels: object) -> float:
        """Of all counters of this name that have these labels."""
        wanted = set(_labels(labels))
        return sum(value for (one, has), value in self._sums.items() if one == name and wanted <= set(has))

    def text(self) -> Iterator[str]:
        for (name, labels), points in sorted(self.series.items()):
            shown = ",".join(f'{label}="{value}"' for label, value in labels)
            for at, value in points:
                yield f"{name}{{{shown}}} {value:.10g} {at:.3f}\n"
        yield "# EOF\n"

    def _note(self, key: tuple[str, Labels], at: float, value: float) -> None:
        self.series.setdefault(key, []).append((at, value))


def _labels(given: dict[str, object]) -> Labels:
    return tuple(sorted((name.rstrip("_"), str(value)) for name, value in given.items()))


def wave(at: float, seed: int, size: float = 1.0) -> float:
    """Between -size and size; the same every time."""
    return size * (0.6 * math.sin(at / 470 + seed) + 0.4 * math.sin(at / 97 + 2.3 * seed))


def story(start: float, end: float, **shared: str) -> Book:
    from .sample_series import control_plane, hardware, workers  # they need this module's words

    book = Book(**shared)
    steps = int((end - start) / STEP_S)
    for number in range(steps + 1):
        at, share = start + number * STEP_S, number / steps
        held = workers(book, at, share, start, end)
        hardware(book, at, share, held)
        control_plane(book, at, share, start, end)
        if shared:
            book.gauge(at, "stoker_operator_leader", 1, instance="operator-0", cluster="west")
    return book


@dataclass(frozen=True)
class ServedStory:
    """A Prometheus that knows the story, which ended at `end` (unix seconds)."""

    url: str
    book: Book
    start: float
    end: float


@contextmanager
def prometheus(hours: float, **shared: str) -> Iterator[ServedStory]:
    """Raises: Unavailable where no Prometheus is built."""
    end = math.floor(time.time() / STEP_S) * STEP_S - STEP_S
    start = end - hours * 3600
    with monitoring.Prometheus(args=["--query.lookback-delta=90s"]) as server:
        server.stop()
        book, text, data = story(start, end, **shared), server.folder / "story.txt", server.folder / "data"
        with text.open("w") as file:
            file.writelines(book.text())
        monitoring.check_config("promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data))
        text.unlink()
        server.start()
        yield ServedStory(server.url, book, start, end)
