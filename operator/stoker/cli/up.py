"""`stoker up`: store, operator, node agent and api in one process on one machine.

Owns the composition and the process: data folder, lock, socket, signals, what it prints. Holds no rule of its own. One
of the few places that pick a concrete store (docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shlex
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click
import uvloop

from stoker.cli.local_exporter import LocalExporter, LocalScraping
from stoker.cli.up_options import UpOptions
from stoker.client.config import data_folder
from stoker.controller.burn_ins import BurnIns
from stoker.controller.counters import Counters
from stoker.controller.job_rows import JobRows
from stoker.controller.jobs import PODS_BY_JOB, job_of
from stoker.controller.metrics import OperatorMetrics, reading
from stoker.controller.operator import Operator
from stoker.heap import hold_heap_together
from stoker.life.burn_in import BurnIn
from stoker.local.agent.agent import NodeAgent
from stoker.local.agent.inventory import NvmlGpus, Together, VirtualGpus
from stoker.local.agent.logs import WorkerLogs
from stoker.local.agent.memory_groups import find_memory_groups
from stoker.local.agent.sessions import WorkerCalls
from stoker.local.datadir import DataDir, DataDirError, write_private
from stoker.local.lost_store import check_store
from stoker.local.project_secrets import LocalSecrets
from stoker.local.store import EmbeddedStore
from stoker.node_health import NodeCaches, gpus_with_health
from stoker.nvml import has_driver
from stoker.process import keep_loaded, set_up_logging, stop_on_signals
from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from stoker.spec.names import SYSTEM_PROJECT
from stoker.spec.node import Gpu
from stoker.spec.pod import PODS
from stoker.spec.quantity import format_bytes, format_cpu
from stoker.spec.queue import QUEUES
from stoker.spec.report_tokens import exporter_token
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import StoreError
from stoker.store.seam import Seam
from stoker_api.app import create_app
from stoker_api.code.store import CodeStore
from stoker_api.curves.store import CurveStore
from stoker_api.deps import Deps, event_cache
from stoker_api.disk import FULL
from stoker_api.files.local import LocalFiles
from stoker_api.kept_file import FileUnavailable, NewerFile
from stoker_api.page.links import grafana_url
from stoker_api.scrape_targets import MetricsPush
from stoker_api.serve import BindError, bind, serve
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import ADMIN_NAME, TokenError, TokenFile
from stoker_api.usage.prices import Prices
from stoker_api.usage.store import UsageStore

log = logging.getLogger("stoker.up")

NODE_NAME = "local"
# Changes of each kind kept for watchers. All of these are in this process and keep up; each change is an object kept.
WATCH_HISTORY = 1024
# The store's writer thread waits for the busy loop at each call; with the default 5 ms a batch takes 20 ms, so 3.
SWITCH_INTERVAL_S = 0.0005


def run_up(options: UpOptions) -> int:
    """Run until SIGTERM or Ctrl-C. Returns the exit code: 0, or 1 when it could not start or broke down."""
    set_up_logging("warning")
    hold_heap_together()
    try:
        (
            options.idle_rule(),
            options.settings(),
            options.types(),
            options.keep_results_s(),
            options.passed(),
            grafana_url(options.grafana),
        )  # what is wrong is refused before anything is made
        datadir = DataDir(options.data or data_folder())
        datadir.lock()
        check_store(datadir, new_store=options.new_store)
        prices = Prices.parse(options.gpu_prices, options.currency)
        listening = bind(options.host, _port(options, datadir))
    except (DataDirError, TokenError, BindError, ValueError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(_disk_message(error, options.data or data_folder()))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        uvloop.run(_Up(options, datadir, listening, prices).run())
    except (StoreError, TokenError, NewerFile, FileUnavailable) as error:
        return _refuse(str(error))
    except Exception as error:
        refused = _disk_error(error)
        if refused is not None:
            return _refuse(_disk_message(refused, datadir.path))
        log.exception("stoker up broke down; its jobs go on, start it again")
        return 1
    finally:
        with contextlib.suppress(OSError):  # a disk that takes no writes keeps its files too
            datadir.endpoint.unlink(missing_ok=True)
            datadir.unlock()
    return 0


def _disk_error(error: BaseException) -> OSError | None:
    """The full or read-only disk that is behind it, if one is."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_disk_error, error.exceptions)), None)
    return error if isinstance(error, OSError) and error.errno in (*FULL, errno.EROFS) else None


def _disk_message(error: OSError, folder: Path) -> str:
    why = error.strerror or error
    return f"can't write to the data folder {folder}: {why}; its jobs go on, start again once that works"


class _Up:
    """One run of the server."""

    def __init__(self, options: UpOptions, datadir: DataDir, listening: socket.socket, prices: Prices) -> None:
        self._options = options
        self._datadir = datadir
        self._listening = listening
        self._prices = prices
        self._ready = asyncio.Event()
        self._memory_groups = find_memory_groups(datadir.path)
        host, port = options.host, listening.getsockname()[1]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self) -> None:
        """Everything at once; ends on a signal, or with the first part that can't go on."""
        async with AsyncExitStack() as stack:
            clock, seam = SystemClock(), _seam()
            stack.callback(seam.close)
            usage = stack.enter_context(UsageStore(self._datadir.path / "usage.db", clock))
            curves = stack.enter_context(CurveStore(self._datadir.path / "curves.db", clock))
            store = await stack.enter_async_context(EmbeddedStore(self._datadir.db, clock, seam, history=WATCH_HISTORY))
            tokens = TokenFile.open(self._datadir.path)
            token_file = tokens.ensure_admin()
            report_key = self._datadir.report_key()
            jobs = WatchCache(store, JOBS, clock=clock)
            queues = WatchCache(store, QUEUES, clock=clock)
            known = NodeCaches(store, clock)
            nodes = known.nodes
            pods = WatchCache(store, PODS, clock=clock, indexes={PODS_BY_JOB: job_of})
            events = event_cache(store, clock)
            counters = Counters()
            operator = Operator(
                store,
                jobs=jobs,
                queues=queues,
                nodes=nodes,
                pods=pods,
                clock=clock,
                settings=self._options.settings(),
                counters=counters,
                gpu_types=self._options.types(),
            )
            rows = JobRows(jobs, pods, queues, clock)
            stack.callback(rows.close)
            watched: dict[str, WatchCache[Any]] = {"TrainingJob": jobs, "Queue": queues, "GPUNode": nodes, "Pod": pods}
            exporter = self._exporter(clock, report_key, tokens.ensure_scraper())
            agent = NodeAgent(
                store,
                pods,
                self._datadir,
                node_name=NODE_NAME,
                inventory=Together(NvmlGpus(), VirtualGpus(self._options.virtual_gpus)),
                clock=clock,
                seam=seam,
                report_url=lambda: self._url,
                report_key=report_key,
                cpu_milli=self._options.cpu_milli,
                memory_bytes=self._options.memory_bytes,
                log_bytes=self._options.log_bytes,
                keep_results_s=self._options.keep_results_s(),
                pass_env=self._options.passed(),
                gpus_as_known=lambda gpus: gpus_with_health(gpus, known.health.get(Key("", NODE_NAME))),
                memory_groups=self._memory_groups,
                job_exists=lambda uid: not jobs.is_synced or jobs.by_uid(uid) is not None,
            )
            files = LocalFiles(self._datadir.jobs, self._datadir.workers, pods)
            stack.callback(files.close)
            push = self._options.push
            app = create_app(
                Deps(
                    store,
                    logs=WorkerLogs(self._datadir),
                    code=CodeStore(self._datadir.code, clock),
                    identity=TokenIdentity(tokens, report_key),
                    clock=clock,
                    jobs=jobs,
                    queues=queues,
                    nodes=nodes,
                    health=known.health,
                    pods=pods,
                    events=events,
                    feed=operator.feed,
                    hosts=self._options.allow_hosts,
                    calls=WorkerCalls(self._datadir),
                    collectors=(
                        OperatorMetrics(
                            lambda: reading(operator, watched, leader=True, nodes=nodes.values()), counters, rows
                        ),
                    ),
                    files=files,
                    secrets=LocalSecrets(self._datadir.secrets),
                    folders={"data": self._datadir.path},
                    usage=usage,
                    curves=curves,
                    idle=self._options.idle_rule(),
                    burn_in=self._options.burn_in,
                    prices=self._prices,
                    grafana=grafana_url(self._options.grafana),
                    trouble=lambda: store.trouble,
                    scraping=LocalScraping(
                        self._datadir,
                        host=self._options.host,
                        port=self._listening.getsockname()[1],
                        node=NODE_NAME,
                        exporter_port=lambda: exporter.port if exporter else None,
                    ),
                ),
                MetricsPush(push, tokens.ensure_scraper()) if push else None,
            )
            caches = (jobs, queues, nodes, pods, events)
            try:
                async with asyncio.TaskGroup() as tasks:
                    parts = [tasks.create_task(cache.run()) for cache in caches]
                    await asyncio.gather(*(cache.synced() for cache in caches))
                    # The agent first: it must know its living workers before anything is placed beside them.
                    parts.append(tasks.create_task(agent.run()))
                    await agent.ready.wait()
                    parts.append(tasks.create_task(operator.run()))
                    if self._options.burn_in:
                        burn_ins = BurnIns(
                            store,
                            jobs,
                            known,
                            operator.feed,
                            operator.recorder,
                            clock,
                            BurnIn(self._options.burn_in_seconds),
                            project=SYSTEM_PROJECT,
                            knows_uuids=True,
                        )
                        parts.append(tasks.create_task(burn_ins.run()))
                    parts.append(tasks.create_task(serve(app, sock=self._listening, on_ready=self._announce)))
                    if exporter is not None:
                        parts.append(tasks.create_task(self._export(exporter)))
                    stop_on_signals(parts)
                    await self._ready.wait()  # who reads that it is ready calls it at once
                    gpus = [gpu for node in nodes.values() for gpu in node.status.gpus]
                    ticket, _ = app.state.services.tickets.issue(ADMIN_NAME, token_file.read_text().strip())
                    self._greet(token_file, gpus, f"{self._url}/#ticket={ticket}")
            finally:
                if agent.alive:
                    workers = "1 worker goes on" if agent.alive == 1 else f"{agent.alive} workers go on"
                    click.echo(f"stoker: stopped; {workers} and the next `stoker up` finds them", err=True)

    def _announce(self, _port: int) -> None:
        keep_loaded()
        write_private(self._datadir.endpoint, json.dumps({"url": self._url, "pid": os.getpid()}).encode() + b"\n")
        self._ready.set()

    def _exporter(self, clock: SystemClock, report_key: bytes, scrape_token: Path) -> LocalExporter | None:
        """None where there is nothing to measure, or none is wanted."""
        real = has_driver(os.environ)
        if not self._options.exporter or not (real or self._options.virtual_gpus):
            return None
        return LocalExporter(
            self._datadir,
            clock,
            node=NODE_NAME,
            host=self._options.host,
            api_url=lambda: self._url,
            api_token=exporter_token(report_key, NODE_NAME),
            scrape_token=scrape_token,
            simulated_gpus=0 if real else self._options.virtual_gpus,
        )

    async def _export(self, exporter: LocalExporter) -> None:
        await self._ready.wait()  # the server is ready without it
        await exporter.run()

    def _greet(self, token_file: Path, gpus: list[Gpu], page: str) -> None:
        real = [gpu for gpu in gpus if not gpu.simulated]
        offers = [f"{len(real)} x {real[0].model}"] if real else []
        if len(gpus) > len(real):
            offers.append(f"{len(gpus) - len(real)} simulated GPUs (slots, not devices)")
        if not offers:
            offers.append("no GPU (jobs with gpusPerWorker: 0 run; `--virtual-gpus N` offers simulated ones)")
        folder = self._datadir.path
        home = "" if folder == data_folder().absolute() else f"STOKER_HOME={shlex.quote(str(folder))} "
        cpus, memory = format_cpu(self._options.cpu_milli), format_bytes(self._options.memory_bytes)
        why_not = self._memory_groups.why_not
        free = f"  memory is counted, not enforced: {why_not}\n" if why_not else ""
        click.echo(
            f"stoker: ready at {self._url}\n"
            f"  token  {token_file}\n"
            f"  page   {page}  (signs in once, within a minute; `{home}stoker page` makes another)\n"
            f"  offers {' and '.join(offers)}, {cpus} CPUs, {memory} memory\n"
            f"{free}"
            f"  try    {home}stoker run --gpus {1 if gpus else 0} --no-code -- python -c 'print(42)'",
            err=True,
        )


def _port(options: UpOptions, datadir: DataDir) -> int:
    """The port asked for; with 0 the one that living workers already report to, if there was one."""
    if options.port:
        return options.port
    try:
        return int(json.loads(datadir.endpoint.read_text())["url"].rpartition(":")[2])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _seam() -> Seam:
    """Faults that the crash sweep asks for by environment (docs/verify.md); none otherwise."""
    trace = os.environ.get("STOKER_SEAM_TRACE")
    return Seam.parse(os.environ.get("STOKER_SEAM", ""), trace=Path(trace) if trace else None)


def _refuse(why: str) -> int:
    click.echo(f"stoker: {why}", err=True)
    return 1
