"""Events on jobs about what happened to their GPUs. Named by the exporter's id: a repeated report makes one event.

Owns their reasons and messages. Called by `routes/report_usage.py`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from stoker.life.gpu_health import one_line
from stoker.spec.event import EVENTS, Event, EventType, Subject, event_about
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.reports import ReportedGpuEvent
from stoker.store.port import AlreadyExists, NotFound, Store

_KINDS = {
    "xid": ("GpuXid", "reports XID {code}", EventType.WARNING),
    "lost": ("GpuLost", "can't be read any more", EventType.WARNING),
    "recovered": ("GpuRecovered", "can be read again", EventType.NORMAL),
    "recovery_action": ("GpuRecoveryAction", "needs recovery action {code}", EventType.WARNING),
    "mig_changed": ("GpuMigChanged", "has a new MIG layout", EventType.NORMAL),
}


class GpuEvents:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, job: TrainingJob, node: str, event: ReportedGpuEvent) -> None:
        """Raises: StoreError."""
        try:
            await self._store.create(EVENTS, event_of(job, node, event))
        except (AlreadyExists, NotFound):
            pass  # reported before; or the job's namespace is gone


def event_of(job: TrainingJob, node: str, event: ReportedGpuEvent) -> Event:
    reason, what, kind = _KINDS[event.kind]
    more = f": {one_line(event.text)}" if event.text else ""
    return event_about(
        Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=job.key, uid=job.uid),
        reason,
        f"GPU {event.index} of node {node} ({one_line(event.uuid)}) {what.format(code=event.code)}{more}",
        at=datetime.fromtimestamp(event.at, UTC),
        mark=hashlib.sha256(f"{node} {event.id}".encode("utf-8", "surrogateescape")).hexdigest()[:16],
        component="stoker-exporter",
        kind=kind,
    )
