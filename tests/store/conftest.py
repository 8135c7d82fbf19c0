"""A store with hands: the embedded one, whose watches and lists a test can break off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.local.store import EmbeddedStore
from stoker.spec.job import TrainingJob
from stoker.store.clock import SystemClock


class Flaky:
    """Passes everything on to a real store; `cut(error)` ends every watch, `refuse(error)` makes the next list fail."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusals: list[Exception] = []
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.lists = 0
        self.watches = 0
        self.silent_s = 0.0
        """What its watches say of themselves."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def cut(self, error: Exception | None) -> None:
        """None: the stream just ends."""
        old, self._cut = self._cut, asyncio.get_running_loop().create_future()
        if error is None:
            old.set_result(None)
        else:
            old.set_exception(error)

    def refuse(self, error: Exception) -> None:
        self._refusals.append(error)

    async def snapshot(self, kind: Any) -> Any:
        self.lists += 1
        await self.may_list.wait()
        if self._refusals:
            raise self._refusals.pop()
        return await self._store.snapshot(kind)

    def watch(self, kind: Any, *, since: str) -> Any:
        self.watches += 1
        return Cutting(self, self._store.watch(kind, since=since), self._cut)


class Cutting:
    """A watch that ends when it is asked to."""

    def __init__(self, store: Flaky, inner: Any, cut: asyncio.Future[None]) -> None:
        self._store, self._inner, self._cut = store, inner, cut

    def __aiter__(self) -> Any:
        return self

    def silent_s(self) -> float:
        return self._store.silent_s

    async def __anext__(self) -> Any:
        following = asyncio.ensure_future(anext(self._inner))
        try:
            await asyncio.wait({following, self._cut}, return_when=asyncio.FIRST_COMPLETED)
            if self._cut.done():
                self._cut.result()
                raise StopAsyncIteration
        finally:
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        return following.result()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Flaky]:
    async with EmbeddedStore(tmp_path / "stoker.db", SystemClock(), history=64) as real:
        yield Flaky(real)


@pytest.fixture
def job() -> Any:
    """Makes a job that is not stored yet."""

    def make(name: str, *, queue: str = "default", namespace: str = "p", **labels: str) -> TrainingJob:
        return TrainingJob.model_validate(
            {
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"queue": queue, "trainer": {"command": ["true"]}},
            }
        )

    return make


@pytest.fixture
def running() -> Any:
    """Keeps a cache running inside a `with`, and fails if it ended by itself."""

    @contextlib.asynccontextmanager
    async def run(cache: Any) -> AsyncIterator[Any]:
        task = asyncio.create_task(cache.run())
        try:
            async with asyncio.timeout(20):
                await cache.synced()
                yield cache
                assert not task.done(), "the cache ended"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return run
