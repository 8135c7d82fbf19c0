"""An operator that dies at each of its writes, once, and is followed by another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from stoker.spec.job import Claim, TrainingJob
from stoker.spec.meta import Key

if TYPE_CHECKING:
    from .conftest import World


_WRITES = {("patch_status", "trainingjobs"), *((name, "pods") for name in ("patch_status", "create", "delete"))}


class Dying:
    """Each write of a job or a pod that none before it made is a leader's last: what it writes beside it is lost."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        """The writes that were."""
        self._world, self._died, self._turn = world, asyncio.Event(), asyncio.Lock()
        for name in ("patch_status", "delete", "create"):
            monkeypatch.setattr(world.store, name, self._last(getattr(world.store, name), name))

    async def each_time_until(self, over: Callable[[], Awaitable[Any]], claimant: str) -> list[Claim]:
        """Start a new leader whenever one has died, until `over`. Returns: the claims seen of that job."""
        claims: list[Claim] = []
        for _ in range(60):
            waiting = [asyncio.ensure_future(self._died.wait()), asyncio.ensure_future(over())]
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            for task in rest:
                task.cancel()
            assert done, self._world.job(claimant).status
            if waiting[0] not in done:
                break
            self._died.clear()
            await self._world.stop()
            claim = self._world.job(claimant).status.claim
            if claim is not None and claim not in claims:
                claims.append(claim)
            self._world.start()
        return claims

    def _last(self, call: Any, name: str) -> Any:
        async def made(kind: Any, key: Any, *args: Any, **how: Any) -> Any:
            if how.get("manager", "operator") != "operator" or (name, kind.plural) not in _WRITES:
                return await call(kind, key, *args, **how)
            async with self._turn:  # else one that the last has led to might be made, unseen, before that has returned
                if self._died.is_set():
                    await asyncio.Event().wait()  # it is dead, and about to be taken away
                done = await call(kind, key, *args, **how)
                status = done.status if isinstance(done, TrainingJob) else None
                state = "" if status is None else f"{status.phase} {status.intent} {bool(status.claim)}"
                step = f"{name} {kind.plural} {key.name if isinstance(key, Key) else key.metadata.name} {state}"
                if step not in self.seen:
                    self.seen.append(step)
                    self._died.set()
                    await asyncio.Event().wait()
            return done

        return made
