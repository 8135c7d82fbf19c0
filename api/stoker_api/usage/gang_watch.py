"""Gangs that one GPU holds back by its heat, found in what exporters counted since the last look: the GPU is blamed.

Owns how long a gang is looked at, in this process's memory: an api that restarts looks as long again. What shows it
is `straggler`'s, what follows `stoker.life.stragglers`'s. Workers' own reports have no part in it. Run by `services`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from stoker.spec.gpu_health import GpuBlame
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.usage import GpuReceipt
from stoker.store.clock import Clock
from stoker.store.port import StoreError
from stoker_api.gpu_health import GpuHealthKeeper

from .board import UsageBoard
from .straggler import FEWEST, GangGpu, GpuUse, blamed, gang_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
WINDOW_S = 300.0
"""Observed of each of the gang's GPUs: an epoch's end, an evaluation or a checkpoint is over by then."""
_SLICE = 200
"""Jobs looked at before others have their turn."""
_Gang = Mapping[GangGpu, GpuUse]


class GangWatch:
    def __init__(
        self,
        placed: Callable[[], Iterable[TrainingJob]],
        view: UsageBoard,
        keeper: GpuHealthKeeper,
        clock: Clock,
    ) -> None:
        self._placed, self._view, self._keeper, self._clock = placed, view, keeper, clock
        self._begun: dict[tuple[str, int], _Gang] = {}
        """(job, attempt) → what its GPUs had done when its window began."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("looking at gangs failed; trying on")
            await self._clock.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """One turn over all running jobs. A gang whose blame can't be written is looked at again in the next."""
        before, self._begun = self._begun, {}
        for count, job in enumerate(list(self._placed())):
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if job.gpus < FEWEST or job.status.phase is not Phase.RUNNING:
                continue
            key = job.uid, job.status.attempt
            gang = gang_of(filter(_is_whole, self._view.receipts(job.uid)), job.status.attempt)
            begun = before.get(key, {})
            if len(gang) != job.gpus or gang.keys() != begun.keys():
                self._begun[key] = gang
                continue
            did = {which: now.minus(begun[which]) for which, now in gang.items()}
            if any(one.amounts.seen_s < WINDOW_S for one in did.values()):
                self._begun[key] = begun
                continue
            self._begun[key] = gang
            for which, why in blamed(did):
                new = GpuBlame(job_uid=job.uid, attempt=job.status.attempt, at=self._clock.now(), message=why)
                try:
                    await self._keeper.take_blame(which.node, which.uuid, new)
                except StoreError as error:
                    self._begun[key] = begun
                    log.warning("job %s: a slow GPU is blamed later: %s", job.key, error)


def _is_whole(receipt: GpuReceipt) -> bool:
    """What is shared is as slow as others make it."""
    return receipt.method == "exclusive" and not receipt.simulated
