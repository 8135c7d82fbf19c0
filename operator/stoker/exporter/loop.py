"""The poll loop: messages of NVML's child and allocations go into the meters, what comes out onto the page.

Owns the order of things and nothing else; one thread, the only one that touches the meters. Never waits for a GPU, the
disk or the network. Called by `main`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import Sample

from stoker import __version__
from stoker.exporter.clock import Moment
from stoker.nvml.frames import Frame, GpuEvent, GpuReading, Message, Trouble

from .allocation.process_pods import pods_of
from .gpu_readings import GpuReadings
from .ledger_writer import EVERY_S, LedgerCopy, LedgerWriter
from .meters.node import NodeMeters
from .meters.snapshot import Snapshot
from .owners import Allocation, Owner
from .serving.families import families, samples
from .serving.page import RenderedPage

RECEIPTS_EVERY_S = 9.8
"""Of holds that go on, rendered for a reporter that posts every 30 s; those that have ended go at once."""
LATE_INTERVALS = 1.5
"""Without a poll for so long the page is made anew all the same: what has become too old goes."""

log = logging.getLogger("stoker.exporter")


class Pushes(Protocol):
    def offer(self, at: float, samples: Iterable[Sample]) -> bool: ...


class Reports(Protocol):
    def event(self, event: GpuEvent, owners: Iterable[Owner]) -> None: ...

    def gpus(self, gpus: Sequence[dict[str, Any]]) -> None: ...


class PollLoop:
    def __init__(
        self,
        meters: NodeMeters,
        page: RenderedPage,
        writer: LedgerWriter,
        *,
        clock: Callable[[], Moment],
        interval_s: float,
        tracks_allocation: bool = True,
        polls: bool = True,
        push: Pushes | None = None,
        reports: Reports | None = None,
        parts: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """parts: What the other parts count of themselves, as `catalogue.EXPORTER`. polls: False without hardware."""
        self._meters, self._page, self._writer = meters, page, writer
        self._clock, self._interval_s = clock, interval_s
        self._tracks, self._polls = tracks_allocation, polls
        self._push, self._reports, self._parts = push, reports, parts
        self._readings = GpuReadings()
        self._inbox: queue.SimpleQueue[Message | Allocation | None] = queue.SimpleQueue()
        self._allocation: Allocation | None = None
        self._trouble = ""
        self._shown_s = self._kept_s = self._reported_s = float("-inf")
        """CLOCK_BOOTTIME."""
        self.gpus: Sequence[GpuReading] = ()
        """Of the newest frame; for other threads."""
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        self._page.ready = not self._polls
        self._thread.start()

    def put(self, message: Message | Allocation) -> None:
        """From any thread."""
        self._inbox.put(message)

    def stop(self, timeout_s: float) -> bool:
        """Handles what was put before, offers the last figures to be kept and pushed. Whether that was done in time."""
        self._inbox.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        going_on = True
        while going_on:
            try:
                going_on = self._turn()
            except Exception:  # the loop's edge: one bad frame must not end the endpoint
                log.exception("a turn of the poll loop failed")

    def _turn(self) -> bool:
        """One message, or a look at the clock. False: that was the end."""
        try:
            message = self._inbox.get(timeout=LATE_INTERVALS * self._interval_s if self._polls else self._interval_s)
        except queue.Empty:
            now = self._clock()
            self._meters.tick(now)
            self._show(now)
            return True
        now = self._clock()
        if message is None:
            self._meters.tick(now)
            self._reported_s = float("-inf")
            self._keep(now)
            return False
        if isinstance(message, Frame):
            self._take_frame(message)
            self._show(now)
        elif isinstance(message, GpuEvent):
            self._take_event(message)
        elif isinstance(message, Trouble):
            self._take_trouble(message)
            self._show(now)
        else:
            self._allocation = message
            if self._meters.allocation(message, now):
                self._keep(now)
        if now.mono_s - self._shown_s >= LATE_INTERVALS * self._interval_s:
            self._show(now)
        return True

    def _take_frame(self, frame: Frame) -> None:
        if self._trouble:
            log.info("NVML answers again")
            self._trouble = ""
        shared = [one for one in frame.gpus if one.processes and self._meters.is_shared(one.uuid)]
        pids = [process.pid for one in shared for process in one.processes or ()]
        self._meters.frame(frame, pods_of(pids))
        self.gpus = frame.gpus
        if not self._page.ready:
            self._kept_s = float("-inf")  # the books begin now
        self._page.ready = True

    def _take_event(self, event: GpuEvent) -> None:
        self._meters.event(event)
        owners = self._meters.owners(event.uuid)
        whose = ", ".join(f"{owner.pod_namespace}/{owner.pod_name}" for owner in owners) or "no pod"
        log.warning("GPU %d (%s), held by %s: %s %s %s", *_log_arguments(event, whose))
        if self._reports is not None:
            self._reports.event(event, owners)

    def _take_trouble(self, trouble: Trouble) -> None:
        if trouble.code != self._trouble:
            log.error("NVML can't be used: %s %s; tried again", trouble.code, trouble.text)
        self._trouble = trouble.code
        self._meters.failed()
        self._page.ready = True  # the page says that there is nothing to show

    def _show(self, now: Moment) -> None:
        self._shown_s = now.mono_s
        if now.mono_s - self._kept_s >= EVERY_S:
            self._keep(now)
        node, gpus, books = self._meters.ledger.node, self._meters.gpus(now), self._writer.books
        snapshot = Snapshot(now.at, node, gpus, books, self._exporter_values(now), __version__)
        self._page.show(lambda: families(snapshot))
        if self._reports is not None:
            self._reports.gpus(self._readings.of(gpus, now))
        if self._push is not None:
            self._push.offer(now.at, samples(snapshot))

    def _keep(self, now: Moment) -> None:
        self._kept_s = now.mono_s
        final_only = now.mono_s - self._reported_s < RECEIPTS_EVERY_S
        if not final_only:
            self._reported_s = now.mono_s
        receipts = self._meters.receipts(final_only=final_only)  # before the ledger: it holds their numbers
        self._writer.offer(LedgerCopy(self._meters.ledger.as_json(now), self._meters.books(), receipts))

    def _exporter_values(self, now: Moment) -> dict[str, float]:
        values = {**self._meters.exporter_values(now), **self._parts()}
        if self._tracks and self._allocation is not None:
            values["allocation_known"] = float(self._allocation.known)
            values["allocation_age_seconds"] = max(0.0, now.mono_s - self._allocation.mono_s)
            for reason, count in self._allocation.unattributed.items():
                values[f"unattributed_devices|{reason}"] = float(count)
        return values


def _log_arguments(event: GpuEvent, whose: str) -> tuple[int, str, str, str, str, str]:
    return event.index, event.uuid, whose, event.kind, str(event.code or ""), event.text
