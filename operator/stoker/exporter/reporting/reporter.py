"""Receipts, GPU events and how the GPUs are, on their way to the api: when to post, when to wait.

Owns the thread and the pauses. Receipts go every 30 s; those that are final, events and GPUs that have changed at once.
After a failure it waits 1 s … 60 s, or as long as the api asks for. Called by main; `offer`, `event` and `gpus` never
block on network or disk.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.exporter.owners import Owner
from stoker.exporter.receipts import Receipt
from stoker.nvml.frames import GpuEvent
from stoker.push.link import NoResponse

from .delivery import Delivered, NotNow, Posts, deliver
from .gpus_post import GpusPost
from .outbox import Receipts, WaitingEvents, event_item
from .spool import ReportSpool

USAGE_PATH = "/v1/report/usage"
EVENTS_PATH = "/v1/report/gpu-events"
EVERY_S = 30.0
GATHER_S = 0.5
"""The GPUs of a worker end together."""
MAX_TEXT_CHARS, MAX_OWNERS = 1024, 64
"""Of an event, as the api takes them."""
SAME_S = 60.0
"""The same XID of a GPU within so long is not reported again: they come in storms, and each would be an event in the
cluster's store. The counter of XIDs counts them all."""
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stats:
    """By outcome since the start: sent, refused (the api never takes it), failed (tried again), dropped (no room, or 30
    days old)."""

    receipts: dict[str, int]
    events: dict[str, int]
    waiting_receipts: int


class UsageReporter:
    """`posts`: a link of its own. `state`: the folder whose `spool/` is used; None: memory only."""

    def __init__(
        self, posts: Posts, node: str, state: Path | None, *, every_s: float = EVERY_S, gather_s: float = GATHER_S
    ) -> None:
        self._posts = posts
        self._head = f'"node":{json.dumps(node)}'
        self._every_s, self._gather_s = every_s, gather_s
        self._spool = ReportSpool(None if state is None else state / "spool")
        self._receipts, self._events = Receipts(), WaitingEvents()
        self._gpus = GpusPost(posts, self._head)
        for item in self._spool.read_receipts():
            self._receipts.put(item)
        for item in self._spool.read_events():
            self._events.put(item)
        self._counts = {name: {"sent": 0, "refused": 0, "failed": 0} for name in ("receipts", "events")}
        self._changed = threading.Condition()
        """Guards everything above; notified at news and at the end."""
        self._keeping = threading.Lock()
        self._urgent = bool(len(self._receipts) or len(self._events))
        self._stopping = False
        self._pause_s = 0.0
        self._reported_at: dict[tuple[object, ...], float] = {}
        """Which XID, and the jobs on its GPU → unix seconds; the poll loop's alone."""
        self._refusals: set[str] = set()
        """Why, as the log has it already."""
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, receipts: Iterable[Receipt]) -> None:
        """The newest of each hold that is kept; ones that were offered before are not sent again."""
        with self._changed:
            for receipt in receipts:
                try:
                    final = self._receipts.offer(receipt)
                except ValueError as error:
                    self._counts["receipts"]["refused"] += 1
                    log.error("a receipt that can't be written: %s: %r", error, receipt)
                    continue
                if final and not self._urgent:
                    self._urgent = True
                    self._changed.notify()
            self._receipts.forget_settled()

    def event(self, event: GpuEvent, owners: Iterable[Owner]) -> None:
        """`owners`: of the GPU, as it happened."""
        jobs = {
            owner.job_uid: {"jobUid": owner.job_uid, "project": owner.project, "jobName": owner.job_name}
            for owner in owners
            if owner.job_uid
        }
        if event.kind == "xid" and self._is_repeated((event.uuid, event.code, event.text, *sorted(jobs)), event.at):
            return
        item = event_item(
            {
                "id": uuid.uuid4().hex,
                "at": event.at,
                "uuid": event.uuid,
                "index": event.index,
                "kind": event.kind,
                "code": event.code,
                "text": event.text[:MAX_TEXT_CHARS],
                "owners": list(jobs.values())[:MAX_OWNERS],
            }
        )
        with self._changed:
            self._events.put(item)
            self._urgent = True
            self._changed.notify()

    def gpus(self, gpus: Sequence[dict[str, Any]]) -> None:
        """How each is now, as `gpu_readings` has it."""
        with self._changed:
            if self._gpus.offer(gpus):
                self._urgent = True
                self._changed.notify()

    def _is_repeated(self, what: tuple[object, ...], at: float) -> bool:
        reported_at = self._reported_at.get(what)
        if reported_at is not None and 0 <= at - reported_at < SAME_S:
            return True
        newer = {one: then for one, then in self._reported_at.items() if 0 <= at - then < SAME_S}
        self._reported_at = newer | {what: at}
        return False

    def stop(self, timeout_s: float = 5.0) -> None:
        """Tries once more to send what waits, keeps the rest on disk. Takes `timeout_s` and a write at most."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._keep()

    @property
    def stats(self) -> Stats:
        with self._changed:
            receipts = {**self._counts["receipts"], "dropped": self._receipts.dropped}
            events = {**self._counts["events"], "dropped": self._events.dropped}
            return Stats(receipts, events, len(self._receipts))

    # --- on the thread

    def _run(self) -> None:
        due_s = time.monotonic() + self._every_s * random.random()  # nodes that start together don't post together
        while True:
            stopping = self._wait_until(due_s)
            try:
                if self._has_unrepeated():
                    self._keep()  # before the network is tried
                done = self._send()
            except Exception:  # (the edge: a defect here must not end the reporting)
                log.exception("reporting failed")
                done = False
            self._keep()
            if stopping:
                return
            if done:
                self._pause_s = 0.0
                due_s = time.monotonic() + self._every_s
            else:
                due_s = time.monotonic() + self._pause_s

    def _wait_until(self, due_s: float) -> bool:
        """Until it is time to post; whether it is for the last time."""
        with self._changed:
            while not self._stopping and (left_s := due_s - time.monotonic()) > 0:
                if self._urgent and not self._pause_s:
                    self._changed.wait_for(lambda: self._stopping, min(left_s, self._gather_s))
                    break
                self._changed.wait(left_s)
            self._urgent = False
            return self._stopping

    def _send(self) -> bool:
        """Everything that waits; whether it went."""
        with self._changed:
            self._receipts.expire(time.time())
        try:
            self._send_all("events", EVENTS_PATH, self._events)
            self._send_all("receipts", USAGE_PATH, self._receipts)
            self._gpus.send()  # the last: a node that the api does not know yet keeps no receipt back
        except (NotNow, NoResponse) as error:
            asked_s = error.retry_after_s if isinstance(error, NotNow) else 0.0
            if not self._pause_s:
                log.warning("the api does not take receipts and GPU events now; they are kept: %s", error)
            self._pause_s = _longer(self._pause_s, asked_s)
            return False
        if self._pause_s:
            log.info("the api takes receipts and GPU events again")
        return True

    def _send_all(self, name: str, path: str, box: Receipts | WaitingEvents) -> None:
        """Raises: NotNow, NoResponse."""
        while True:
            with self._changed:
                batch = box.batch()
            if not batch:
                return
            done = Delivered()
            try:
                deliver(self._posts, path, self._head, name, batch, done)
            except (NotNow, NoResponse):
                self._counts[name]["failed"] += len(batch) - len(done.taken) - len(done.refused)
                raise
            finally:
                self._settle(name, box, done)

    def _settle(self, name: str, box: Receipts | WaitingEvents, done: Delivered) -> None:
        with self._changed:
            for item in done.taken:
                box.settle(item)
            for item, why in done.refused:
                box.settle(item)
                level = logging.DEBUG if why in self._refusals else logging.ERROR
                self._refusals.add(why)
                log.log(level, "the api refuses one of the %s, it is given up: %s: %s", name, why, item.text)
            self._counts[name]["sent"] += len(done.taken)
            self._counts[name]["refused"] += len(done.refused)

    def _has_unrepeated(self) -> bool:
        """Whether something waits that is not reported again."""
        with self._changed:
            return bool(len(self._events)) or any(item.final for item in self._receipts.items())

    def _keep(self) -> None:
        """Brings the spool up to date."""
        with self._keeping:  # or `stop` and the thread could write theirs in the wrong order
            with self._changed:
                receipts, events = self._receipts.items(), self._events.items()
            self._spool.write("events", events)
            self._spool.write("receipts", receipts)


def _longer(pause_s: float, asked_s: float, rand: Callable[[], float] = random.random) -> float:
    """The next pause: doubled, and spread over ± 20 %, so that nodes don't come back together."""
    base_s = min(PAUSE_MAX_S, max(PAUSE_FIRST_S, 2 * pause_s))
    return max(asked_s, base_s) * (0.8 + 0.4 * rand())
