"""Everything the routes need, wired once: built by `create_app` from `Deps`, kept on the app, closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi.requests import HTTPConnection

from stoker.push.relay import Relay
from stoker.scheduler_feed import SchedulerFeed
from stoker.worker_sizes import WorkerSizes
from stoker_api.code.store import keep_tidy
from stoker_api.health_metrics import StartableJobs
from stoker_api.pacing import Pacing, UnderWay
from stoker_api.scrape_targets import MetricsPush, relay
from stoker_api.sessions.rendezvous import SessionAudit

from .curves.feed import CurveFeed
from .deps import Deps
from .device_health import UnhealthyDevices
from .files.readers import FileReaders
from .files.remote import RemoteFiles
from .files.transfers import Transfers
from .gpu_events import GpuEvents
from .gpu_health import GpuHealthKeeper
from .health_metrics import HealthMetrics
from .jobs.change import Changer
from .jobs.checks import Checks
from .jobs.index import JobIndex
from .jobs.progress import ProgressBoard, ProgressWriter
from .jobs.progress_metrics import JobProgress
from .jobs.render import JobRenderer, live
from .jobs.submit import Submitter
from .metrics import ApiMetrics, CodeHeld, GpuPrices, QueueCounts
from .page.tickets import Tickets, WrongTickets
from .ports import JobFiles
from .scheduler_view import SchedulerView
from .sessions.registry import Sessions
from .sessions.rendezvous import Rendezvous
from .streams.curve_stream import CurveStreams
from .streams.followers import Followers
from .streams.job_events import JobEvents
from .streams.job_lists import JobLists
from .streams.log_stream import LogStreams
from .streams.sse import StreamHub
from .usage.board import UsageBoard
from .usage.gang_watch import GangWatch
from .usage.idle import IdleWatch
from .usage.intake import UsageIntake

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    deps: Deps
    metrics: ApiMetrics
    index: JobIndex
    feed: SchedulerFeed
    sizes: WorkerSizes
    scheduler: SchedulerView
    board: ProgressBoard
    writer: ProgressWriter
    renderer: JobRenderer
    checks: Checks
    submitter: Submitter
    changer: Changer
    followers: Followers
    under_way: UnderWay
    hub: StreamHub
    job_events: JobEvents
    logs: LogStreams
    job_lists: JobLists
    sessions: Sessions
    audit: SessionAudit
    rendezvous: Rendezvous
    files: JobFiles
    transfers: Transfers
    startable_jobs: StartableJobs
    health_metrics: HealthMetrics
    usage_board: UsageBoard
    usage: UsageIntake | None
    """None: this server keeps no usage."""
    curves: CurveFeed | None
    """None: this server keeps no metrics of jobs."""
    curve_streams: CurveStreams | None
    gpu_events: GpuEvents
    gpu_health: GpuHealthKeeper
    idle: IdleWatch
    push: Relay | None
    tickets: Tickets
    wrong_tickets: WrongTickets

    @classmethod
    def build(cls, deps: Deps, metrics_push: MetricsPush | None = None) -> Services:
        index = JobIndex(deps.jobs)
        usage_board = UsageBoard(deps.jobs.by_uid)
        prices = GpuPrices(deps.prices.of, lambda: _models(deps, usage_board))
        board = ProgressBoard()
        progress = JobProgress(
            index.placed, board.newest, usage_board.idle_since, usage_board.__contains__, deps.clock.now
        )
        counts = QueueCounts(
            index.counts, index.held_gpus, lambda: {queue.metadata.name for queue in deps.queues.values()}
        )
        metrics = ApiMetrics([counts, prices, *_code_held(deps), *deps.collectors], progress.text)
        feed = deps.feed or SchedulerFeed(
            deps.jobs,
            deps.queues,
            deps.nodes,
            others=deps.other_pods,
            runtimes=deps.runtimes,
            pods=deps.pods,
            topology=deps.topology,
            gpu_types=deps.gpu_types,
        )
        feed.start()
        sizes = WorkerSizes(deps.queues, deps.nodes, deps.runtimes)
        scheduler = SchedulerView(feed, sizes, is_operators=deps.feed is not None)
        startable_jobs = StartableJobs(scheduler, deps.queues, deps.clock)
        health_metrics = HealthMetrics(deps.caches, deps.folders, startable_jobs, deps.clock)
        metrics.registry.register(health_metrics)
        sessions = Sessions(deps.jobs, deps.pods, deps.clock, deps.sessions)
        files = deps.files or RemoteFiles(
            sessions, deps.calls, deps.pods, deps.runtimes, FileReaders(deps.store, deps.pods, deps.clock), deps.clock
        )
        renderer = JobRenderer(board, usage_board, deps.clock, deps.jobs, files.place)
        followers = Followers(deps.jobs, deps.events, deps.pods)
        under_way = UnderWay()
        pacing = Pacing(under_way)
        checks = Checks(deps.store, deps.jobs, deps.queues, deps.runtimes, scheduler, deps.identity, deps.code)
        audit = SessionAudit(deps.store, deps.clock)
        curves = curve_streams = None
        if deps.curves is not None:
            curves = CurveFeed(deps.curves, deps.jobs, deps.clock, metrics.curve_samples)
            curve_streams = CurveStreams(deps.jobs, curves, followers, deps.streams, pacing)
        return cls(
            deps=deps,
            metrics=metrics,
            startable_jobs=startable_jobs,
            health_metrics=health_metrics,
            index=index,
            feed=feed,
            sizes=sizes,
            scheduler=scheduler,
            board=board,
            writer=ProgressWriter(
                board, deps.jobs, deps.store, deps.clock, metrics.progress_writes.inc, usage=usage_board
            ),
            renderer=renderer,
            checks=checks,
            submitter=Submitter(deps.store, deps.jobs, index, checks),
            changer=Changer(deps.store, deps.jobs),
            followers=followers,
            under_way=under_way,
            hub=StreamHub(metrics, deps.streams),
            job_events=JobEvents(deps.jobs, deps.events, board, renderer, followers, deps.clock, deps.streams, pacing),
            job_lists=JobLists(renderer, followers, deps.streams, pacing),
            logs=LogStreams(deps.jobs, deps.pods, deps.logs, followers, deps.clock, deps.streams, pacing),
            sessions=sessions,
            audit=audit,
            rendezvous=Rendezvous(sessions, audit, deps.calls, metrics, deps.clock),
            files=files,
            transfers=Transfers(),
            usage_board=usage_board,
            usage=None if deps.usage is None else UsageIntake(deps.usage, usage_board, deps.jobs, deps.clock),
            curves=curves,
            curve_streams=curve_streams,
            gpu_events=GpuEvents(deps.store),
            gpu_health=GpuHealthKeeper(
                deps.store,
                deps.nodes,
                deps.health,
                deps.clock,
                on_cluster=deps.runtimes is not None,
                burn_in=deps.burn_in,
            ),
            idle=IdleWatch(
                deps.store,
                index.placed,
                lambda job: live(job, board.newest(job), None),
                usage_board,
                deps.clock,
                deps.idle,
            ),
            push=None if metrics_push is None else relay(deps, metrics_push, metrics.text),
            tickets=Tickets(deps.clock),
            wrong_tickets=WrongTickets(deps.clock),
        )

    @property
    def ready(self) -> bool:
        """The caches hold what the store holds, so that answers are not half of the truth."""
        return all(cache.is_synced for cache in self.deps.caches.values())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Background work while the app lives: writing progress, removing old code. Then nothing of it is left."""
        tasks = [
            asyncio.create_task(self._keep_writing()),
            asyncio.create_task(self.startable_jobs.run()),
            asyncio.create_task(self.health_metrics.run()),
            asyncio.create_task(UnhealthyDevices(self.deps.pods, self.gpu_health, self.deps.clock).run()),
        ]
        if isinstance(self.files, RemoteFiles):
            tasks.append(asyncio.create_task(self.files.run()))
        if self.deps.code is not None:
            tasks.append(asyncio.create_task(keep_tidy(self.deps.code, self.deps.jobs, self.deps.clock)))
        if self.push is not None:
            tasks.append(asyncio.create_task(self.push.run()))
        if self.usage is not None:
            tasks.append(asyncio.create_task(self.usage.run(self.writer.wake)))
            tasks.append(asyncio.create_task(self.usage.store.keep_tidy()))
            tasks.append(asyncio.create_task(self.idle.run()))
            gangs = GangWatch(self.index.placed, self.usage_board, self.gpu_health, self.deps.clock)
            tasks.append(asyncio.create_task(gangs.run()))
        if self.curves is not None:
            tasks.append(asyncio.create_task(self.curves.run()))
        try:
            yield
        finally:
            self.hub.close()
            await self.sessions.close()
            await self.audit.written()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.curves is not None:
                await self.curves.write_all()
            self.followers.close()
            if self.deps.feed is None:
                self.feed.stop()
            self.index.unsubscribe()
            self.renderer.unsubscribe()
            self.sizes.unsubscribe()

    async def _keep_writing(self) -> None:
        while True:
            try:
                await self.writer.run()
            except Exception:
                log.exception("writing progress failed; starting over")
            await self.deps.clock.sleep(1.0)


def _code_held(deps: Deps) -> list[CodeHeld]:
    code = deps.code
    return [] if code is None else [CodeHeld(lambda: (code.bundles, code.total_bytes))]


def _models(deps: Deps, board: UsageBoard) -> set[str]:
    """Models of GPUs, as nodes and exporters call them."""
    return {gpu.model for node in deps.nodes.values() for gpu in node.status.gpus if not gpu.simulated} | board.models()


def services(connection: HTTPConnection) -> Services:
    found: Services = connection.app.state.services
    return found
