"""`python -m stoker_api.main`: the api as a process of its own on a Kubernetes cluster.

Owns the composition and the process: options, signals, the data folder's lock. Holds no rule of its own. One of the
few places that pick a concrete store (docs/architecture.md). Everything it keeps but workers' logs is the cluster's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from stoker.cluster_options import gpu_types, topology_levels
from stoker.heap import hold_heap_together
from stoker.kube.client import KubeClient
from stoker.kube.pod_logs import PodLogs
from stoker.kube.project_secrets import KubeSecrets
from stoker.kube.review import TokenReviewer
from stoker.kube.store import KubeStore
from stoker.kube.views import cluster_pods
from stoker.process import keep_loaded, set_up_logging, stop_on_signals
from stoker.push import flags
from stoker.push.sender import PushOptions
from stoker.spec.gpu_types import SHIPPED, GpuTypes
from stoker.spec.job import JOBS
from stoker.spec.job_parts import IdleAction
from stoker.spec.pod import Pod
from stoker.spec.quantity import format_duration, new_duration
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import NotFound, StoreError, Unavailable
from stoker.store.seam import Seam
from stoker_api.code.quota import KEEP_S, LEASE_S, TOTAL_BYTES, CodeLimits
from stoker_api.kept_file import FileUnavailable, NewerFile
from stoker_api.scrape_targets import MetricsPush
from stoker_api.serve import Certificate

from .app import create_app
from .cluster_identity import ClusterIdentity
from .code.store import CodeStore
from .curves.store import CurveStore
from .deps import Deps, caches
from .page.links import grafana_url
from .serve import BindError, bind, serve
from .usage.idle import IdleRule
from .usage.prices import CURRENCY, Prices
from .usage.store import KEEP_S as USAGE_KEEP_S
from .usage.store import UsageStore
from .worker_logs.source import WorkerLogSource
from .worker_logs.storage import LogLimits, ShippedLogs

log = logging.getLogger("stoker.api")

PORT = 8470
_ACCOUNT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?:[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_ANYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class ApiOptions:
    """The process's options."""

    data: Path
    kubeconfig: Path | None = None
    host: str = "0.0.0.0"
    port: int = PORT
    allow_hosts: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    exporter_accounts: tuple[str, ...] = ()
    topology_levels: tuple[str, ...] = ()
    gpu_types: GpuTypes = SHIPPED
    log_bytes: int | None = None
    code_bytes: int = TOTAL_BYTES
    code_keep: float = KEEP_S
    usage_keep: float = USAGE_KEEP_S
    gpu_prices: tuple[str, ...] = ()
    currency: str = CURRENCY
    grafana: str = ""
    idle_after: float = 1800.0
    idle_action: str = IdleAction.NOTIFY.value
    burn_in: bool = True
    push: PushOptions | None = None


def _keep_s(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """Units: seconds."""
    keep_s = _duration_s(_context, _option, text)
    if keep_s < LEASE_S:
        raise click.BadParameter(f"must be {format_duration(LEASE_S)} at least: a submit takes its time")
    return keep_s


def _duration_s(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """Units: seconds."""
    try:
        return new_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _minute_s(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """Units: seconds."""
    after_s = _duration_s(_context, _option, text)
    if after_s < 60:
        raise click.BadParameter("must be a minute at least: exporters report every few seconds")
    return after_s


def _accounts(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for account in given:
        if not _ACCOUNT.fullmatch(account):
            raise click.BadParameter(f"{account!r} is no service account; write NAMESPACE:NAME")
    return given


class _CannotStart(Exception):
    """The text says what to do."""


@click.command(context_settings={"auto_envvar_prefix": "STOKER_API", "show_default": True})
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Absent: $KUBECONFIG, else the pod's account.")
@click.option("--host", default="0.0.0.0", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, help="0: any free one.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default="/var/lib/stoker",
    help="The folder for workers' logs, users' code, usage and metrics.",
)
@click.option("--log-bytes", type=click.IntRange(1), help="The most that all logs may hold. Absent: the disk.")
@click.option("--code-bytes", type=click.IntRange(1), default=TOTAL_BYTES, help="The most that all code may hold.")
@click.option(
    "--code-keep",
    default=format_duration(KEEP_S),
    callback=_keep_s,
    help="How long code stays that no job names, from its last use on.",
)
@click.option(
    "--usage-keep",
    default=format_duration(USAGE_KEEP_S),
    callback=_duration_s,
    help="How long the history of usage stays.",
)
@click.option(
    "--gpu-price",
    "gpu_prices",
    multiple=True,
    metavar="MODEL=PRICE",
    help="What an hour of a GPU costs whose model has MODEL in its name (`*`: any). Repeatable.",
)
@click.option("--currency", default=CURRENCY, help="Of the prices: three letters.")
@click.option("--grafana", default="", metavar="URL", help="The Grafana with the dashboards: the web page links to it.")
@click.option(
    "--idle-after",
    default="30m",
    callback=_minute_s,
    help="A running job whose GPUs are all idle for so long is idle, unless it says otherwise (spec.idle).",
)
@click.option(
    "--idle-action",
    type=click.Choice([action.value for action in IdleAction]),
    default=IdleAction.NOTIFY.value,
    help="What follows: an event on the job, that and suspend, or nothing.",
)
@click.option(
    "--burn-in/--no-burn-in", default=True, help="As the operator's: a GPU stays sick until it has passed a test."
)
@click.option("--allow-host", "allow_hosts", multiple=True, help="A name people and workers call this server by.")
@click.option(
    "--audience", "audiences", multiple=True, help="What people's tokens must be for. Absent: the API server."
)
@click.option(
    "--exporter-account",
    "exporter_accounts",
    multiple=True,
    callback=_accounts,
    metavar="NAMESPACE:NAME",
    help="A service account that exporters run as. Repeatable; absent: no reports on GPUs.",
)
@click.option(
    "--topology-level",
    "topology_levels",
    multiple=True,
    callback=topology_levels,
    help="As the operator's. Repeatable, outermost first.",
)
@click.option(
    "--gpu-type",
    "gpu_types",
    multiple=True,
    callback=gpu_types,
    metavar="MODEL=TYPE",
    help="What queues call GPUs with these words in their model's name, as the operator's. Repeatable.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM); followed when it changes.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key (PEM).")
def main(**given: object) -> None:
    """Serve Stoker's REST api on a Kubernetes cluster.

    Each option may come from the environment: STOKER_API_PORT, STOKER_API_ALLOW_HOST (several: separated by blanks), …
    """
    set_up_logging("info")
    hold_heap_together()
    push = flags.push_options(given)
    sys.exit(run(ApiOptions(**given, push=push)))  # type: ignore[arg-type]


main.params += flags.params()


def run(options: ApiOptions) -> int:
    """Run until SIGTERM or Ctrl-C. Returns the exit code: 0, or 1 when it could not start or broke down."""
    try:
        prices, grafana = _prices(options), _grafana(options)
        with (
            _locked(options.data),
            UsageStore(options.data / "usage.db", SystemClock(), keep_s=options.usage_keep) as usage,
            CurveStore(options.data / "curves.db", SystemClock()) as curves,
            _listening(options) as listening,
        ):
            uvloop.run(_serve(options, listening, _certificate(options), usage, curves, prices, grafana))
    except (_CannotStart, BindError, StoreError, NewerFile, FileUnavailable) as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("the api broke down; workers go on and report to the next one")
        return 1
    return 0


async def _serve(
    options: ApiOptions,
    listening: socket.socket,
    certificate: Certificate | None,
    usage: UsageStore,
    curves: CurveStore,
    prices: Prices,
    grafana: str,
) -> None:
    clock = SystemClock()
    seam = Seam.parse(os.environ.get("STOKER_SEAM", ""))
    async with (
        KubeClient.from_config(kubeconfig=options.kubeconfig, clock=clock, seam=seam) as client,
        KubeClient.from_config(kubeconfig=options.kubeconfig, clock=clock, seam=seam, anonymous=True) as callers,
    ):
        store = KubeStore(client, clock, manager="stoker-api")
        jobs = WatchCache(store, JOBS, clock=clock)
        pods, others = cluster_pods(store, clock)
        shipped = ShippedLogs(options.data / "logs", LogLimits(total=options.log_bytes))
        logs = WorkerLogSource(shipped, pods, jobs, clock, _Tail(PodLogs(client)))
        limits = CodeLimits(total=options.code_bytes, keep_s=options.code_keep)
        deps = Deps(
            store,
            **caches(store, clock, jobs=jobs, pods=pods),
            logs=logs,
            code=CodeStore(options.data / "code", clock, limits),
            identity=ClusterIdentity(TokenReviewer(client), clock, options.audiences, options.exporter_accounts),
            clock=clock,
            runtimes=WatchCache(store, RUNTIMES, clock=clock),
            other_pods=others,
            topology=options.topology_levels,
            gpu_types=options.gpu_types,
            secrets=KubeSecrets(callers),
            hosts=_names(options),
            folders={"data": options.data},
            usage=usage,
            curves=curves,
            prices=prices,
            grafana=grafana,
            idle=IdleRule(options.idle_after, IdleAction(options.idle_action)),
            burn_in=options.burn_in,
        )
        async with asyncio.TaskGroup() as tasks:
            parts = [tasks.create_task(cache.run()) for cache in deps.caches.values()]
            parts.append(tasks.create_task(_when_synced(options, deps, logs, listening, certificate)))
            if certificate is not None:
                parts.append(tasks.create_task(certificate.follow(clock)))
            stop_on_signals(parts)


async def _when_synced(
    options: ApiOptions, deps: Deps, logs: WorkerLogSource, listening: socket.socket, certificate: Certificate | None
) -> None:
    """Answer once the caches hold what the cluster holds: half of the truth is worse than a refused connection."""
    await asyncio.gather(*(cache.synced() for cache in deps.caches.values()))
    keep_loaded()
    async with logs.running():
        tls = None if certificate is None else certificate.context
        app = create_app(deps, MetricsPush(options.push) if options.push else None)
        await serve(app, sock=listening, tls=tls, on_ready=lambda port: log.info("ready on port %d", port))


class _Tail:
    """The kubelet's copy of logs, as `worker_logs` asks for it (`PodLogTail`)."""

    def __init__(self, logs: PodLogs) -> None:
        self._logs = logs

    async def stream(self, pod: Pod, *, follow: bool) -> AsyncIterator[bytes]:
        try:
            async with contextlib.aclosing(self._logs.read(pod.key, follow=follow)) as pieces:
                async for piece in pieces:
                    yield piece
        except NotFound as error:
            raise LookupError(str(error)) from error
        except Unavailable as error:
            raise OSError(str(error)) from error


def _names(options: ApiOptions) -> tuple[str, ...]:
    """What Host headers may name: probes and scrapers call a pod by its address (POD_IP, from the downward API)."""
    own = (options.host, os.environ.get("POD_IP", ""))
    addresses = (f"[{name}]" if ":" in name else name for name in own if name not in _ANYWHERE)
    return (*options.allow_hosts, *addresses)


def _grafana(options: ApiOptions) -> str:
    try:
        return grafana_url(options.grafana)
    except ValueError as error:
        raise _CannotStart(f"--grafana: {error}") from None


def _prices(options: ApiOptions) -> Prices:
    try:
        return Prices.parse(options.gpu_prices, options.currency)
    except ValueError as error:
        raise _CannotStart(f"--gpu-price or --currency: {error}") from None


def _certificate(options: ApiOptions) -> Certificate | None:
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise _CannotStart("give both --tls-cert and --tls-key, or neither")
    try:
        return Certificate(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise _CannotStart(f"can't use the certificate in {options.tls_cert}: {error}") from None


@contextlib.contextmanager
def _listening(options: ApiOptions) -> Iterator[socket.socket]:
    with contextlib.closing(bind(options.host, options.port)) as sock:
        yield sock


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Two processes would write the same logs."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "lock").open("w")
    except OSError as error:
        raise _CannotStart(f"can't write to the data folder {data}: {error.strerror}; name another by --data") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _CannotStart(f"another api keeps its logs in {data}; give each its own folder by --data") from None
        yield


if __name__ == "__main__":
    main()
