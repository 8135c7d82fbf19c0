"""The operator's options, by flag or environment variable. Called by `main` only."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stoker.cluster_options import gpu_types, topology_levels
from stoker.heap import hold_heap_together
from stoker.life.burn_in import BurnIn
from stoker.life.gpu_moves import parse_moves
from stoker.life.step import Settings
from stoker.process import set_up_logging
from stoker.push import flags
from stoker.push.sender import PushOptions
from stoker.spec.gpu_health import Move
from stoker.spec.gpu_types import GpuTypes
from stoker.spec.quantity import NOT_ZERO, new_duration

from .render_kube import ClusterSettings

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class OperatorOptions:
    cluster: ClusterSettings
    settings: Settings
    namespace: str
    """Of the lease."""
    lease_name: str
    identity: str
    """Different for every process that ever runs."""
    kubeconfig: str | None
    context: str | None
    host: str
    port: int
    workers: int
    """Jobs reconciled at once."""
    topology: tuple[str, ...]
    """Its levels: keys of node labels, outermost first."""
    gpu_types: GpuTypes
    taint_sick_nodes: bool
    burn_in: BurnIn | None
    """None: no sick GPU is tested."""
    push: PushOptions | None


def operator_command(run: Callable[[OperatorOptions], int]) -> click.Command:
    """The command line; `run`'s result is the exit code."""

    def callback(**given: Any) -> None:
        set_up_logging(given["log_level"], given["log_format"])
        hold_heap_together()
        raise SystemExit(run(_options(given)))

    return click.Command(
        "operator", callback=callback, params=_params(), help="Stoker's operator on a Kubernetes cluster."
    )


def _options(given: dict[str, Any]) -> OperatorOptions:
    return OperatorOptions(
        cluster=ClusterSettings(
            control_image=given["image"],
            trainer_image=given["trainer_image"],
            api_url=given["api_url"],
            api_ca=_certificates(given["api_ca"]),
            pull_secrets=given["pull_secret"],
            pull_policy=given["pull_policy"],
            node_lost_s=given["node_lost_after"],
        ),
        settings=Settings(
            start_timeout_s=given["start_timeout"],
            pull_timeout_s=given["pull_timeout"],
            image_timeout_s=given["image_timeout"],
            unschedulable_s=given["unschedulable_timeout"],
            node_lost_s=given["node_lost_after"],
            blame_s=given["blame"],
            ttl_s=given["ttl_after_finished"],
            usage_half_life_s=given["usage_half_life"] or None,
            moves=given["sick_gpu"],
        ),
        namespace=given["namespace"] or _own_namespace(),
        lease_name=given["lease"],
        identity=given["identity"] or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        kubeconfig=given["kubeconfig"],
        context=given["context"],
        host=given["host"],
        port=given["port"],
        workers=given["workers"],
        topology=given["topology_level"],
        gpu_types=given["gpu_type"],
        taint_sick_nodes=given["taint_sick_nodes"],
        burn_in=BurnIn(given["burn_in_seconds"], given["burn_in_image"] or given["trainer_image"])
        if given["burn_in"]
        else None,
        push=flags.push_options(given),
    )


def _params() -> list[click.Parameter]:
    levels = click.Choice(["debug", "info", "warning", "error"])
    return [
        _option("--image", "STOKER_IMAGE", None, "The control-plane image: it holds the supervisor.", required=True),
        _option("--trainer-image", "STOKER_TRAINER_IMAGE", None, "For workers that name none.", required=True),
        _option("--pull-policy", "STOKER_PULL_POLICY", "IfNotPresent", "Of the control-plane image in workers' pods."),
        _option("--api-url", "STOKER_API_URL", "", "Where workers report; empty: nowhere."),
        _option("--api-ca", "STOKER_API_CA", None, "A PEM file: authorities that workers trust."),
        _option("--pull-secret", "STOKER_PULL_SECRETS", (), "For --image, in every project.", multiple=True),
        _option("--namespace", "STOKER_NAMESPACE", "", "Of the lease. Empty: the pod's own, else stoker."),
        _option("--lease", "STOKER_LEASE", "stoker-operator", "The lease: operators that share it take turns."),
        _option("--identity", "STOKER_IDENTITY", "", "Of this process. Empty: the host's name and a random part."),
        _option("--kubeconfig", "STOKER_KUBECONFIG", None, "A file. Absent: $KUBECONFIG, else the pod's own account."),
        _option("--context", "STOKER_CONTEXT", None, "Of the kubeconfig."),
        _option("--host", "STOKER_PROBES_HOST", "0.0.0.0", "Where probes and metrics are served."),
        _option("--port", "STOKER_PROBES_PORT", 8080, "0: any that is free.", type=click.IntRange(0, 65535)),
        _option("--workers", "STOKER_RECONCILES", 32, "Jobs reconciled at once.", type=click.IntRange(1, 1024)),
        _option(
            "--topology-level",
            "STOKER_TOPOLOGY_LEVELS",
            (),
            "A node label that says what is close together; outermost first, as the api's. Repeatable.",
            multiple=True,
            callback=topology_levels,
        ),
        _option(
            "--gpu-type",
            "STOKER_GPU_TYPES",
            (),
            "MODEL=TYPE: what queues call GPUs with these words in their model's name, as the api's. Repeatable.",
            multiple=True,
            callback=gpu_types,
        ),
        _option("--log-format", "STOKER_LOG_FORMAT", "text", "How lines look.", type=click.Choice(["text", "json"])),
        _option("--log-level", "STOKER_LOG_LEVEL", "info", "What is logged.", type=levels),
        _duration("--start-timeout", "STOKER_START_TIMEOUT", "5m", "A gang that does not run by then is withdrawn."),
        _duration("--pull-timeout", "STOKER_PULL_TIMEOUT", "30m", "The same while images are being pulled."),
        _duration("--image-timeout", "STOKER_IMAGE_TIMEOUT", "2m", "How long an image may be unavailable."),
        _duration("--unschedulable-timeout", "STOKER_UNSCHEDULABLE_TIMEOUT", "10s", "How long a pod may be refused."),
        _duration("--node-lost-after", "STOKER_NODE_LOST_AFTER", "60s", "A node silent for so long is given up."),
        _duration("--blame", "STOKER_BLAME", "5m", "How long a job avoids a node that failed it."),
        _option(
            "--ttl-after-finished",
            "STOKER_TTL_AFTER_FINISHED",
            None,
            "Jobs are deleted this long after their end where neither they nor their queue say it. Absent: never.",
            callback=_ttl,
        ),
        _duration(
            "--usage-half-life",
            "STOKER_USAGE_HALF_LIFE",
            "1d",
            "What a queue held so long ago counts half in the order between queues. 0s: only what it holds now counts.",
        ),
        _option(
            "--sick-gpu",
            "STOKER_SICK_GPU",
            (),
            "CAUSE=now, checkpoint or stay: when a job whose GPU is sick for that is saved and moved. Repeatable.",
            multiple=True,
            callback=_moves,
        ),
        _option(
            "--taint-sick-nodes",
            "STOKER_TAINT_SICK_NODES",
            False,
            "Keep other people's pods off nodes that are left out for a sick GPU.",
            is_flag=True,
        ),
        _option(
            "--burn-in/--no-burn-in",
            "STOKER_BURN_IN",
            True,
            "Test a sick GPU, once what was wrong is over, before it takes jobs again. As the api's.",
        ),
        _option("--burn-in-image", "STOKER_BURN_IN_IMAGE", None, "With the test in it. Absent: --trainer-image."),
        _option(
            "--burn-in-seconds",
            "STOKER_BURN_IN_SECONDS",
            10.0,
            "How long such a test multiplies matrices.",
            type=click.FloatRange(0, 3600),
        ),
        *flags.params(),
    ]


def _option(name: str, env: str, default: Any, says: str, **how: Any) -> click.Option:
    return click.Option(
        [name], envvar=env, default=default, show_default=bool(default), show_envvar=True, help=says, **how
    )


def _duration(name: str, env: str, default: str, says: str) -> click.Option:
    return _option(name, env, default, says, callback=_seconds)


def _seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    try:
        return new_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _moves(_context: click.Context, _option: click.Parameter, rows: tuple[str, ...]) -> dict[str, Move]:
    try:
        return parse_moves(rows)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _ttl(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    seconds = _seconds(context, option, value) if value else None
    if seconds == 0:
        raise click.BadParameter(NOT_ZERO)
    return seconds


def _certificates(path: str | None) -> str:
    """The file's text, which goes into every worker's environment."""
    if path is None:
        return ""
    try:
        text = Path(path).read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError, ssl.SSLError) as error:
        raise click.BadParameter(f"--api-ca {path} holds no PEM certificates that can be read: {error}") from None
    return text


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text().strip() or "stoker"
    except OSError:
        return "stoker"
