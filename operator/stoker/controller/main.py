"""The operator's process on a cluster: `python -m stoker.controller.main`.

Owns the composition: client, store, caches, leader election, probes, signals. Holds no rule of its own. One of the few
places that pick a concrete store (docs/architecture.md). Every process keeps its caches warm; the one that
leads operates.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from stoker.kube.client import KubeClient
from stoker.kube.lease import LeaderElection, StillWorking
from stoker.kube.review import TokenReviewer
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.node_health import NodeCaches
from stoker.process import keep_loaded, stop_on_signals
from stoker.push.relay import MetricsPage, Relay
from stoker.spec.job import JOBS
from stoker.spec.queue import QUEUES
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import StoreError
from stoker.store.seam import Seam

from .burn_ins import BurnIns
from .counters import Counters
from .job_rows import JobRows
from .jobs import PODS_BY_JOB, job_of
from .metrics import OperatorMetrics, Reading, reading
from .node_taints import NodeTaints
from .operator import Operator
from .options import OperatorOptions, operator_command
from .probes import Answer, Page, serve_probes, text
from .renderers import ClusterRenderer
from .scrape_auth import ScrapeAuth
from .unreadable_jobs import UnreadableJobs

log = logging.getLogger("stoker.operator")


def run_operator(options: OperatorOptions) -> int:
    """Run until SIGTERM or Ctrl-C. Returns: the exit code; 1 when it broke down, to be started again."""
    try:
        return uvloop.run(_Process(options).run())
    except StoreError as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("the operator broke down; jobs go on, it is to be started again")
        return 1


class _Process:
    """One run of the process; of its terms as leader each has an operator of its own."""

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        trace = os.environ.get("STOKER_SEAM_TRACE")
        self._seam = Seam.parse(os.environ.get("STOKER_SEAM", ""), trace=Path(trace) if trace else None)
        self._counters = Counters()
        self._operator: Operator | None = None
        self._past_errors = 0
        self._ready = False
        self._exit_code = 0

    async def run(self) -> int:
        """Everything at once; ends on a signal, or with the first part that fails. Returns: the exit code."""
        options, clock = self._options, self._clock
        async with AsyncExitStack() as stack:
            stack.callback(self._seam.close)
            client = await stack.enter_async_context(
                KubeClient.from_config(
                    kubeconfig=options.kubeconfig,
                    context=options.context,
                    clock=clock,
                    seam=self._seam,
                    meter=self._counters,
                )
            )
            election = LeaderElection(
                client, clock, namespace=options.namespace, identity=options.identity, name=options.lease_name
            )
            store = KubeStore(
                client,
                clock,
                fence=election.check,
                on_unreadable=lambda found: unreadable.found(found),
                manager="stoker",
            )
            unreadable = UnreadableJobs(store, clock)
            jobs = WatchCache(store, JOBS, clock=clock)
            queues = WatchCache(store, QUEUES, clock=clock)
            runtimes = WatchCache(store, RUNTIMES, clock=clock)
            known = NodeCaches(store, clock)
            nodes = known.nodes
            pods, others = cluster_pods(store, clock, {PODS_BY_JOB: job_of})
            caches: dict[str, WatchCache[Any]] = {
                "TrainingJob": jobs,
                "Queue": queues,
                "TrainingRuntime": runtimes,
                "Node": nodes,
                "Pod": pods,
                "OtherPod": others,
            }
            rows = JobRows(jobs, pods, queues, clock)
            stack.callback(rows.close)

            async def operate() -> None:
                operator = self._operator = Operator(
                    store,
                    jobs=jobs,
                    queues=queues,
                    nodes=nodes,
                    pods=pods,
                    clock=clock,
                    settings=options.settings,
                    others=others,
                    runtimes=runtimes,
                    renderer=ClusterRenderer(jobs, runtimes, options.cluster),
                    workers=options.workers,
                    counters=self._counters,
                    topology=options.topology,
                    gpu_types=options.gpu_types,
                )
                try:
                    async with asyncio.TaskGroup() as term:
                        term.create_task(operator.run())
                        term.create_task(unreadable.run(operator.recorder))
                        if options.taint_sick_nodes:
                            term.create_task(NodeTaints(store, nodes, clock).run())
                        if options.burn_in is not None:
                            burn_ins = BurnIns(
                                store,
                                jobs,
                                known,
                                operator.feed,
                                operator.recorder,
                                clock,
                                options.burn_in,
                                project=options.namespace,
                            )
                            term.create_task(burn_ins.run())
                finally:
                    self._past_errors += operator.reconcile_errors
                    self._operator = None

            def read() -> Reading:
                read = reading(
                    self._operator,
                    caches,
                    leader=election.is_leader,
                    past_errors=self._past_errors,
                    unreadable_jobs=unreadable.reported,
                    nodes=nodes.values(),
                )
                limit = client.limit
                return replace(read, calls=self._seam.counts, api_window=limit.window, api_refusals=limit.refusals)

            pages, page = self._pages(_registry(OperatorMetrics(read, self._counters, rows)))
            scrapers = ScrapeAuth(TokenReviewer(client), clock)
            server = await serve_probes(options.host, options.port, pages, {"/metrics": scrapers.answer})
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            log.info("operator %s: probes and metrics on port %d", options.identity, port)
            async with asyncio.TaskGroup() as tasks:
                parts = [tasks.create_task(cache.run()) for cache in caches.values()]
                leading = tasks.create_task(self._lead(election, operate, caches))
                if options.push is not None:
                    parts.append(tasks.create_task(Relay(options.push, page).run()))
                stop_on_signals([leading])
                await asyncio.wait({leading})  # a cancelled leader has stopped its work and released the lease
                for part in parts:
                    part.cancel()
        return self._exit_code

    async def _lead(
        self, election: LeaderElection, operate: Callable[[], Any], caches: dict[str, WatchCache[Any]]
    ) -> None:
        began = self._clock.monotonic()
        await asyncio.gather(*(cache.synced() for cache in caches.values()))
        keep_loaded()
        self._ready = True
        counts = ", ".join(f"{len(cache)} {name}" for name, cache in caches.items())
        log.info("in sync after %.1f s: %s", self._clock.monotonic() - began, counts)
        try:
            await election.run(operate)
        except StillWorking as error:
            # Most likely a long pass of the scheduler, on its thread: it can't be cut short, and it writes nothing.
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._exit_code = 1
            why = "after losing the lease: it is to be started again" if self._exit_code else "after the signal"
            log.error("exit %d %s; jobs go on: %s", self._exit_code, why, error)

    def _pages(
        self, registry: CollectorRegistry
    ) -> tuple[dict[str, Page], Callable[[], Awaitable[Sequence[MetricsPage]]]]:
        """What is served, and the metrics as they are pushed."""

        async def page() -> bytes:
            # Off the loop: with rows of 10,000 jobs it takes tenths of a second (tools/bench/metrics.py).
            return await asyncio.to_thread(generate_latest, registry)

        async def metrics() -> Answer:
            return True, await page(), CONTENT_TYPE_PLAIN_0_0_4

        async def sources() -> Sequence[MetricsPage]:
            return [MetricsPage({"job": "stoker-operator", "instance": socket.gethostname()}, text=await page())]

        pages: dict[str, Page] = {
            "/healthz": lambda: text(True, "ok"),
            "/readyz": lambda: text(self._ready, "ok" if self._ready else "the first lists are not in yet"),
            "/metrics": metrics,
        }
        return pages, sources


def _registry(metrics: OperatorMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


main = operator_command(run_operator)

if __name__ == "__main__":
    main()
