"""A page of a list of jobs followed as events: all of it, then what has changed of it, at most once a second.

Level-triggered as the other streams: a change of any job wakes the follower, which reads its page again and sends the
jobs that are new on it or were rendered again. Newest first that costs what the page holds, and all followers together
read a hundred pages a second. What must look at all jobs (a search, another order) takes turns with the others that
must, and together they take a fifth of the loop's time. So with many followers, or with very many jobs, each sees
changes later. Called by `routes/jobs.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator

from stoker.spec.job import TrainingJob
from stoker_api.jobs.index import Filter
from stoker_api.jobs.render import JobRenderer, joined
from stoker_api.pacing import Pacing

from .followers import Followers
from .sse import HEARTBEAT, RETRY, StreamSettings, frame

_REST = 4
_PAGES_PER_S = 100.0

Page = tuple[list[TrainingJob], str | None]


class JobLists:
    def __init__(self, renderer: JobRenderer, followers: Followers, settings: StreamSettings, pacing: Pacing) -> None:
        self._renderer, self._followers, self._settings, self._pacing = renderer, followers, settings, pacing
        self._looking = asyncio.Lock()
        self._open = 0

    async def follow(
        self,
        first: Page,
        wanted: Callable[[], Awaitable[Filter]],
        read: Callable[[Filter], Awaitable[Page]],
        *,
        looks_at_all: bool,
    ) -> AsyncGenerator[bytes, None]:
        """SSE frames until the client goes. `wanted`: what its caller may see now; `read`: the page of it, again."""
        loop = asyncio.get_running_loop()
        with self._followers.follow_all() as follower, self._counted():
            follower.wake()  # for what has changed since `first` was read
            async with self._pacing:
                jobs, cursor = first
                shown = self._rendered(jobs)
            yield RETRY + _frame(shown.values(), shown, cursor)
            sent = list(shown), cursor
            due_s = loop.time() + self._every_s
            while True:
                while not await follower.wait(self._settings.heartbeat_s):
                    yield HEARTBEAT
                await asyncio.sleep(due_s - loop.time())
                due_s = loop.time() + self._every_s
                follower.clear()
                filtered = await wanted()
                async with self._turn(looks_at_all):
                    jobs, cursor = await read(filtered)
                    before, shown = shown, self._rendered(jobs)
                news = [data for uid, data in shown.items() if before.get(uid) != data]
                if news or (list(shown), cursor) != sent:
                    yield _frame(news, shown, cursor)
                    sent = list(shown), cursor

    @property
    def _every_s(self) -> float:
        return max(self._settings.list_every_s, self._open / _PAGES_PER_S)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def _rendered(self, jobs: Iterable[TrainingJob]) -> dict[str, bytes]:
        return {job.uid: self._renderer.job(job) for job in jobs}

    @contextlib.asynccontextmanager
    async def _turn(self, looks_at_all: bool) -> AsyncIterator[None]:
        if not looks_at_all:
            async with self._pacing:
                yield
            return
        await self._looking.acquire()
        begun_s = time.thread_time()
        try:
            yield
        finally:
            rest_s = _REST * (time.thread_time() - begun_s)
            asyncio.get_running_loop().call_later(rest_s, self._looking.release)


def _frame(news: Iterable[bytes], order: Iterable[str], cursor: str | None) -> bytes:
    """`order`: of all jobs of the page, by uid."""
    tail = f',"order":{json.dumps(list(order))},"nextCursor":{json.dumps(cursor)}'
    return frame("jobs", joined(news, tail.encode()).decode())
