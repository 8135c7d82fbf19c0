"""The thread that pushes, one request after the other, oldest samples first.

Owns when to send, when to try again and when to give up, and the counts of all that. `offer` never blocks on the
network. What is refused is dropped and counted (the specification forbids to send it again); what could not be sent now
is kept and tried again with growing, jittered pauses. Called by the exporter's main, elsewhere by `relay`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Sample

from . import protobuf
from .buffer import Buffer, SampleBatch
from .client import Outcome, Receiver, RemoteWriteClient, Result

log = logging.getLogger("stoker.push")

REQUEST_SAMPLES = 5000


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Raises: ValueError where a label's name is none."""

    receiver: Receiver
    every_s: float = 15.0
    labels: Mapping[str, str] = field(default_factory=dict)
    """For every series that has no label of that name."""
    up: bool = True
    """Whether each poll has a series `up` of 1: where all samples are one target's."""
    most_samples: int = 500_000
    """That wait: two hours of a node with 8 GPUs, about 5 MB."""
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0

    def __post_init__(self) -> None:
        for name in self.labels:
            if not protobuf.is_label_name(name):
                raise ValueError(f"{name!r} is no label: letters, digits and '_', not beginning with a digit or '__'")


@dataclass(frozen=True, slots=True)
class PushStats:
    """Since the start."""

    sent: int
    refused: int
    dropped: int
    """For want of room."""
    retries: dict[str, int]
    """HTTP status, `transport` or `credentials` → how often a request is to be sent again for it."""
    buffered: int


class Push:
    """`start`, `offer` at every poll, `stop`."""

    def __init__(self, options: PushOptions, *, unix: Callable[[], float] = time.time) -> None:
        """Raises: OSError, ssl.SSLError where the CA file can't be used."""
        self._options, self._unix = options, unix
        self._buffer = Buffer(options.most_samples, options.labels)
        self._client = RemoteWriteClient(options.receiver)
        self._offered_at: float | None = None
        self._sent = self._refused = 0
        self._retries: Counter[str] = Counter()
        self._refusals_logged: set[str] = set()
        self._down = False
        self._wake = threading.Condition()
        self._stop_by: float | None = None
        """Monotonic seconds."""
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, at: float, samples: Iterable[Sample]) -> bool:
        """Takes a poll's samples if `every_s` have gone since the last ones; says whether. `at`: unix seconds."""
        before = self._offered_at
        # A hair less, for polls come when they come; a clock that was set back begins anew.
        if before is not None and 0 <= at - before < 0.95 * self._options.every_s:
            return False
        self._offered_at = at
        self._buffer.add(at, (Sample("up", {}, 1.0), *samples) if self._options.up else samples)
        with self._wake:
            self._wake.notify()
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends every series, and sends what waits for at most so long. What is left then is lost."""
        if self._offered_at is not None:
            self._buffer.end(max(self._unix(), self._offered_at + 0.001))
        with self._wake:
            self._stop_by = time.monotonic() + timeout_s
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def stats(self) -> PushStats:
        return PushStats(
            sent=self._sent,
            refused=self._refused,
            dropped=self._buffer.dropped,
            retries=dict(self._retries),
            buffered=len(self._buffer) + self._buffer.in_flight,
        )

    def _run(self) -> None:
        while not self._is_over():
            is_ending = self._stop_by is not None  # asked before the buffer is: the series' ends are in it by then
            batch = self._buffer.take(REQUEST_SAMPLES)
            if batch is None:
                self._client.close()
                if is_ending:
                    return
                self._pause(self._options.every_s)
                continue
            self._deliver(batch)
            self._buffer.in_flight = 0
        self._client.close()

    def _deliver(self, batch: SampleBatch) -> None:
        """Until the receiver has taken or refused it, or the end has come."""
        pause_s = self._options.first_pause_s
        while not self._is_over():
            result = self._client.send(batch.request)
            match result.outcome:
                case Outcome.TAKEN:
                    self._sent += batch.count
                    self._log_up()
                    return
                case Outcome.REFUSED:
                    self._refused += batch.count
                    self._log_refused(result, batch.count)
                    return
                case Outcome.LATER:
                    self._retries[result.code] += 1
                    self._log_down(result)
                    self._pause_whole(max(result.after_s, pause_s * random.uniform(0.5, 1.0)))
                    pause_s = min(2 * pause_s, self._options.longest_pause_s)

    def _pause(self, seconds: float) -> None:
        """Until something is offered, the end is asked for, or so long."""
        with self._wake:
            if self._stop_by is None and not len(self._buffer):
                self._wake.wait(seconds)

    def _pause_whole(self, seconds: float) -> None:
        """So long; cut short when the end is asked for (one more try), and by the end itself."""
        until = time.monotonic() + seconds
        with self._wake:
            asked = self._stop_by
            if asked is not None:
                until = min(until, asked)
            while self._stop_by is asked and (left := until - time.monotonic()) > 0:
                self._wake.wait(left)

    def _is_over(self) -> bool:
        return self._stop_by is not None and time.monotonic() >= self._stop_by

    def _log_refused(self, result: Result, count: int) -> None:
        if result.code in self._refusals_logged:
            return
        self._refusals_logged.add(result.code)
        log.warning(
            "%s refuses samples with %s, which are dropped (%d now; more for this reason are only counted): %s",
            self._options.receiver.url,
            result.code,
            count,
            result.text[:300] or "no reason given",
        )

    def _log_down(self, result: Result) -> None:
        if not self._down:
            self._down = True
            log.warning(
                "can't push to %s (%s %s); trying again, the newest %d samples are kept",
                self._options.receiver.url,
                result.code,
                result.text[:300],
                self._options.most_samples,
            )

    def _log_up(self) -> None:
        if self._down:
            self._down = False
            log.warning("pushing to %s again", self._options.receiver.url)
