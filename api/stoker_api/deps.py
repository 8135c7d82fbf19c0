"""What the api is given by the process that runs it, and the way to get that from a store.

The only module of the api that may name a concrete store or log source. Called by `stoker up` and the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from prometheus_client.registry import Collector

from stoker.node_health import NodeCaches
from stoker.scheduler_feed import SchedulerFeed
from stoker.spec.event import EVENTS, Event
from stoker.spec.gpu_health import GPUNodeHealth
from stoker.spec.gpu_types import SHIPPED, GpuTypes
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.node import GPUNode
from stoker.spec.other_pod import OtherPod
from stoker.spec.pod import PODS, Pod
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.runtime import TrainingRuntime
from stoker.store.cache import WatchCache
from stoker.store.clock import Clock
from stoker.store.port import Store

from .code.store import CodeStore
from .curves.store import CurveStore
from .identity import Identity
from .ports import JobFiles, LogSource, Scraping, Secrets, SessionCaller
from .sessions.registry import SessionSettings
from .streams.job_events import EVENTS_BY_OBJECT
from .streams.sse import StreamSettings
from .usage.idle import IdleRule
from .usage.prices import Prices
from .usage.store import UsageStore


@dataclass(frozen=True)
class Deps:
    """The caches must be kept running by the caller (`running_caches`), and may be shared with the operator."""

    store: Store
    jobs: WatchCache[TrainingJob]
    queues: WatchCache[Queue]
    nodes: WatchCache[GPUNode]
    """Joined with `health`, which it keeps current too."""
    health: WatchCache[GPUNodeHealth]
    pods: WatchCache[Pod]
    events: WatchCache[Event]
    """With the index `event_cache` gives it."""
    logs: LogSource
    identity: Identity
    clock: Clock
    code: CodeStore | None = None
    """Users' code; None: this server keeps none."""
    runtimes: WatchCache[TrainingRuntime] | None = None
    """On a cluster; None: this is one machine, and what only a cluster can do is refused (`jobs/checks.py`)."""
    other_pods: WatchCache[OtherPod] | None = None
    """Other people's pods, where there may be any."""
    hosts: tuple[str, ...] = ()
    """Names of this server besides the loopback's, as they stand in Host headers without port."""
    collectors: tuple[Collector, ...] = ()
    """Further metrics for /metrics (the operator's, say)."""
    streams: StreamSettings = field(default_factory=StreamSettings)
    calls: SessionCaller | None = None
    """How a worker is called to a session; None: it asks."""
    sessions: SessionSettings = field(default_factory=SessionSettings)
    files: JobFiles | None = None
    """What jobs leave behind, where it is on a disk of this machine; None: their pods are asked (`files/remote.py`)."""
    secrets: Secrets | None = None
    """Of projects; None: this server keeps none."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """What this server writes to, by its name in the metrics of disk use."""
    usage: UsageStore | None = None
    """What jobs have had of GPUs; None: this server keeps none."""
    curves: CurveStore | None = None
    """What jobs report of their training; None: this server keeps none."""
    prices: Prices = field(default_factory=Prices)
    grafana: str = ""
    """Where the dashboards are, for links of the web page; '': nowhere."""
    idle: IdleRule = field(default_factory=IdleRule)
    """For jobs that say nothing themselves."""
    burn_in: bool = False
    """The operator tests sick GPUs before they come back."""
    scraping: Scraping | None = None
    """Where metrics are served; None: where pods say so."""
    topology: tuple[str, ...] | None = None
    """Its levels, as the operator has them; None: as of a SchedulerState."""
    gpu_types: GpuTypes = SHIPPED
    """As the operator has them."""
    feed: SchedulerFeed | None = None
    """The operator's, where it runs in this process; None: the api makes one."""
    trouble: Callable[[], str] = lambda: ""
    """Why the store takes no writes now; '': it does."""

    @property
    def caches(self) -> dict[str, WatchCache[Any]]:
        """All of them, for the process that runs them and waits for them; named as in the operator's metrics."""
        found: dict[str, WatchCache[Any] | None] = {
            "TrainingJob": self.jobs,
            "Queue": self.queues,
            "Node": self.nodes,
            "Pod": self.pods,
            "Event": self.events,
            "TrainingRuntime": self.runtimes,
            "OtherPod": self.other_pods,
        }
        return {kind: cache for kind, cache in found.items() if cache is not None}


def event_cache(store: Store, clock: Clock) -> WatchCache[Event]:
    """A cache of events with the index the api reads by."""
    return WatchCache(store, EVENTS, clock=clock, indexes={EVENTS_BY_OBJECT: lambda event: [event.involved_object.uid]})


class Caches(TypedDict):
    """The caches that every api needs."""

    jobs: WatchCache[TrainingJob]
    queues: WatchCache[Queue]
    nodes: WatchCache[GPUNode]
    health: WatchCache[GPUNodeHealth]
    pods: WatchCache[Pod]
    events: WatchCache[Event]


def caches(
    store: Store,
    clock: Clock,
    *,
    jobs: WatchCache[TrainingJob] | None = None,
    pods: WatchCache[Pod] | None = None,
) -> Caches:
    """Those of `Deps`, over any store; the ones that are not given are made."""
    known = NodeCaches(store, clock)
    return Caches(
        jobs=WatchCache(store, JOBS, clock=clock) if jobs is None else jobs,
        queues=WatchCache(store, QUEUES, clock=clock),
        nodes=known.nodes,
        health=known.health,
        pods=WatchCache(store, PODS, clock=clock) if pods is None else pods,
        events=event_cache(store, clock),
    )


@contextlib.asynccontextmanager
async def running_caches(deps: Deps) -> AsyncIterator[None]:
    """Keeps the caches of `deps` current; where no other part runs them. Enters once all have synced."""
    tasks = [asyncio.create_task(cache.run()) for cache in deps.caches.values()]
    try:
        await asyncio.gather(*(cache.synced() for cache in deps.caches.values()))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
