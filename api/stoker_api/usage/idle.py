"""Running jobs whose GPUs are all idle: reported once per idle period, and suspended where that is wanted.

`due` is the policy, pure. `IdleWatch` carries it out: it looks at every running job now and then, so that nothing that
was missed costs more than a turn. A report is noted on the job (ANNOTATION_IDLE_REPORTED) after its event, named by
attempt and period: if the api dies between the two, the next one writes the same event. A period ends with the
first moment of work, and its report with it. Called by `services`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from stoker.spec.event import EVENTS, EventType, Subject, event_about
from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.job_parts import IdleAction
from stoker.spec.names import ANNOTATION_IDLE_REPORTED, ANNOTATION_IDLE_SUSPENDED, ANNOTATION_SUBMITTER
from stoker.spec.quantity import format_duration, parse_duration
from stoker.spec.usage import GpuReceipt
from stoker.store.clock import Clock
from stoker.store.port import AlreadyExists, Conflict, NotFound, Store, StoreError

from .board import UsageBoard

log = logging.getLogger(__name__)

LOOK_EVERY_S = 15.0
_SLICE = 200
"""Jobs looked at before others have their turn."""
_GPUS_NAMED = 8
_MARGIN_S = 1.0


@dataclass(frozen=True, slots=True)
class IdleRule:
    """After how long, and what then."""

    after_s: float = 1800.0
    action: IdleAction = IdleAction.NOTIFY


def rule_of(job: TrainingJob, default: IdleRule) -> IdleRule:
    """The job's own rule; what it does not say is the server's."""
    wanted = job.spec.idle
    return IdleRule(
        default.after_s if wanted.after is None else parse_duration(wanted.after),
        default.action if wanted.action is None else wanted.action,
    )


def due(
    job: TrainingJob, since: datetime | None, receipts: Iterable[GpuReceipt], rule: IdleRule, now: datetime
) -> bool:
    """Whether a report is due now that the job has been idle since `since` (None: it is not, or unknown)."""
    status, spec = job.status, job.spec
    if since is None or rule.action is IdleAction.NONE or not spec.total_gpus:
        return False
    if status.phase is not Phase.RUNNING or spec.suspend or spec.cancel or job.metadata.deletion_timestamp is not None:
        return False
    if status.held is not None or status.started_at is None:
        return False
    if (now - max(since, status.started_at)).total_seconds() < rule.after_s:
        return False
    mine = [receipt for receipt in receipts if receipt.attempt == status.attempt]
    if not mine or any(receipt.simulated for receipt in mine):
        return False
    reported_at = reported_of(job)
    return reported_at is None or reported_at < since


def reported_of(job: TrainingJob) -> datetime | None:
    """When it was last reported as idle."""
    try:
        reported_at = datetime.fromisoformat(job.metadata.annotations[ANNOTATION_IDLE_REPORTED])
    except (KeyError, ValueError):
        return None
    return reported_at if reported_at.tzinfo is not None else reported_at.replace(tzinfo=UTC)


class IdleWatch:
    """`newest`: the job with its newest progress, which shows holds."""

    def __init__(
        self,
        store: Store,
        placed: Callable[[], Iterable[TrainingJob]],
        newest: Callable[[TrainingJob], TrainingJob],
        view: UsageBoard,
        clock: Clock,
        default: IdleRule,
    ) -> None:
        self._store, self._placed, self._newest = store, placed, newest
        self._view, self._clock, self._default = view, clock, default

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("looking at idle jobs failed; trying on")
            await self._clock.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """One turn over all running jobs."""
        for count, job in enumerate(list(self._placed())):
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            now, rule = self._clock.now(), rule_of(job, self._default)
            since = self._view.idle_since(job.uid, now) if job.spec.total_gpus else None
            if since is not None and due(self._newest(job), since, self._view.receipts(job.uid), rule, now):
                try:
                    await self._act(job, since, rule, now)
                except StoreError as error:  # one job's: the others are looked at all the same
                    log.warning("idle job %s is looked at again later: %s", job.key, error)

    async def _act(self, job: TrainingJob, since: datetime, rule: IdleRule, now: datetime) -> None:
        receipts = [one for one in self._view.receipts(job.uid) if one.attempt == job.status.attempt]
        suspends = rule.action is IdleAction.SUSPEND
        message = idle_message(job, since, receipts, now, suspends=suspends)
        await self._report(job, since, message, now)
        annotations = {**job.metadata.annotations, ANNOTATION_IDLE_REPORTED: now.isoformat()}
        if suspends:
            annotations[ANNOTATION_IDLE_SUSPENDED] = now.isoformat()
        spec = job.spec.model_copy(update={"suspend": True}) if suspends else job.spec
        metadata = job.metadata.model_copy(update={"annotations": annotations})
        try:
            # With the version that was judged: a change of the job meanwhile is not overwritten.
            await self._store.update(JOBS, job.model_copy(update={"metadata": metadata, "spec": spec}))
        except (Conflict, NotFound):
            return  # changed or gone: the next turn sees
        log.info("job %s: %s", job.key, message)

    async def _report(self, job: TrainingJob, since: datetime, message: str, now: datetime) -> None:
        event = event_about(
            Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=job.key, uid=job.uid),
            "Idle",
            message,
            at=now,
            mark=f"{job.status.attempt}.{since.timestamp() / 60:.0f}",
            component="stoker-api",
            kind=EventType.WARNING,
        )
        try:
            await self._store.create(EVENTS, event)
        except (AlreadyExists, NotFound):
            pass  # reported before that was noted


def idle_message(
    job: TrainingJob, since: datetime, receipts: Iterable[GpuReceipt], now: datetime, *, suspends: bool
) -> str:
    """'alice: all 2 GPUs have been idle for 31m (no_process 31m); … `stoker suspend j` frees them'"""
    mine = list(receipts)
    owner = job.metadata.annotations.get(ANNOTATION_SUBMITTER, "")
    who = f"{''.join(c if c.isprintable() else '?' for c in owner)}: " if owner else ""
    count, name = job.gpus, job.metadata.name
    which = "its GPU has" if count == 1 else f"all {count} GPUs have"
    classes: dict[str, float] = {}
    for receipt in mine:
        for what, seconds in receipt.idle_s.items():
            classes[what] = classes.get(what, 0.0) + seconds / max(1, count)
    spent = ", ".join(f"{what} {format_duration(seconds)}" for what, seconds in classes.items() if seconds >= _MARGIN_S)
    places = sorted({f"{receipt.node}/{receipt.uuid}" for receipt in mine})
    more = f" and {len(places) - _GPUS_NAMED} more" if len(places) > _GPUS_NAMED else ""
    way = (
        f"suspended by Stoker (idle.action Suspend); `stoker resume {name}` goes on from the checkpoint"
        if suspends
        else f"`stoker suspend {name}` or `stoker cancel {name}` frees them"
    )
    idle_s = (now - since).total_seconds()
    return (
        f"{who}{which} been idle for {format_duration(idle_s)} (in this attempt: {spent or 'idle'}); {way}. "
        f"GPUs: {', '.join(places[:_GPUS_NAMED])}{more}"
    )
