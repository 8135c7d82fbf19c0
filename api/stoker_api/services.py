"""Everything the routes need, wired once: built by `create_app` from `Deps`, kept on the app, closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request

from .deps import Deps
from .jobs.change import Changer
from .jobs.checks import Checks
from .jobs.index import JobIndex
from .jobs.progress import ProgressBoard, ProgressWriter
from .jobs.render import JobRenderer
from .jobs.submit import Submitter
from .metrics import ApiMetrics, QueueCounts
from .scheduler_feed import SchedulerFeed
from .streams.job_events import JobEvents
from .streams.log_stream import LogStreams
from .streams.news import News
from .streams.sse import StreamHub

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    deps: Deps
    metrics: ApiMetrics
    index: JobIndex
    scheduler: SchedulerFeed
    board: ProgressBoard
    writer: ProgressWriter
    renderer: JobRenderer
    submitter: Submitter
    changer: Changer
    news: News
    hub: StreamHub
    job_events: JobEvents
    logs: LogStreams

    @classmethod
    def build(cls, deps: Deps) -> Services:
        index = JobIndex(deps.jobs)
        metrics = ApiMetrics([QueueCounts(index.counts), *deps.collectors])
        shared = deps.other_pods is not None  # with others: a cluster, where our own pods may outlive their jobs too
        scheduler = SchedulerFeed(
            deps.jobs,
            deps.queues,
            deps.nodes,
            others=deps.other_pods,
            runtimes=deps.runtimes,
            pods=deps.pods if shared else None,
        )
        board = ProgressBoard()
        renderer = JobRenderer(board)
        news = News(deps.jobs, deps.events, deps.pods)
        return cls(
            deps=deps,
            metrics=metrics,
            index=index,
            scheduler=scheduler,
            board=board,
            writer=ProgressWriter(board, deps.jobs, deps.store, deps.clock, metrics.progress_writes.inc),
            renderer=renderer,
            submitter=Submitter(
                deps.store,
                deps.jobs,
                index,
                Checks(deps.store, deps.queues, deps.runtimes, scheduler, deps.identity),
            ),
            changer=Changer(deps.store, deps.jobs),
            news=news,
            hub=StreamHub(metrics, deps.streams),
            job_events=JobEvents(deps.jobs, deps.events, board, renderer, news, deps.clock, deps.streams),
            logs=LogStreams(deps.jobs, deps.pods, deps.logs, news, deps.clock, deps.streams),
        )

    @property
    def ready(self) -> bool:
        """The caches hold what the store holds, so that answers are not half of the truth."""
        return all(cache.is_synced for cache in self.deps.caches)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Background work (writing progress) while the app lives; then nothing of it is left in the caches."""
        writer = asyncio.create_task(self._keep_writing())
        try:
            yield
        finally:
            self.hub.close()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self.news.close()
            self.scheduler.close()
            self.index.unsubscribe()

    async def _keep_writing(self) -> None:
        while True:
            try:
                await self.writer.run()
            except Exception:
                log.exception("writing progress failed; starting over")
            await self.deps.clock.sleep(1.0)


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found
