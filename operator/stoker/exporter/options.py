"""The process's options, each from the command line or else from the environment. Called by `main`."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stoker.nvml.frames import COLLECTORS

PORT = 8475
PREFIX = "STOKER_EXPORTER_"
KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


@dataclass(frozen=True)
class Options:
    host: str
    port: int
    node: str
    state: Path | None
    interval: float
    """Units: seconds, as all durations here."""
    stuck_after: float
    allocation: str
    """none, kubelet, workers."""
    kubelet_socket: Path
    workers: Path | None
    api_url: str
    api_token_file: Path | None
    api_ca: Path | None
    no_collector: tuple[str, ...]
    expected_gpus: int
    """0: those that were seen."""
    retired_gpu: tuple[str, ...]
    simulated_gpus: int
    tls_cert: Path | None
    tls_key: Path | None
    auth_token_file: Path | None
    push_url: str
    push_every: float
    push_token_file: Path | None
    push_basic_auth_file: Path | None
    push_ca: Path | None
    push_header: Mapping[str, str]
    push_label: Mapping[str, str]
    push_allow_http: bool

    @property
    def collectors(self) -> tuple[str, ...]:
        """Those that are on, beside the core."""
        return tuple(name for name in COLLECTORS if name not in self.no_collector)


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Ends the process with code 2 and a sentence if they can't be used, as argparse does."""
    parser = _parser(environment)
    found = vars(parser.parse_args(arguments))
    found["no_collector"], found["retired_gpu"] = tuple(found["no_collector"]), tuple(found["retired_gpu"])
    matching = [
        (len(pattern), count) for pattern, count in found["expected_gpus"] if fnmatchcase(found["node"], pattern)
    ]
    found["expected_gpus"] = max(matching, default=(0, 0))[1]
    found["push_label"], found["push_header"] = dict(found["push_label"]), dict(found["push_header"])
    options = Options(**found)
    if mistake := _mistake(options):
        parser.error(mistake)
    return options


def _mistake(options: Options) -> str:
    if options.allocation == "workers" and options.workers is None:
        return "--allocation workers needs --workers: the folder with the workers of `stoker up`, <data>/workers"
    if (options.tls_cert is None) != (options.tls_key is None):
        return "give both --tls-cert and --tls-key, or neither"
    if options.stuck_after < 2 * options.interval:
        return "--stuck-after has to be at least twice --interval"
    if options.push_token_file and options.push_basic_auth_file:
        return "give --push-token-file or --push-basic-auth-file, not both"
    return ""


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker-exporter",
        description="Serve what this node's GPUs do, and for which jobs, to Prometheus.",
        epilog=f"Each option may come from the environment: {PREFIX}PORT, {PREFIX}NO_COLLECTOR (several: separated by "
        "blanks), … What the metrics mean: docs/metrics.md. How time and energy are counted: docs/exporter.md.",
        allow_abbrev=False,
    )

    def add(flag: str, kind: Callable[[str], Any] = str, default: Any = None, **more: Any) -> None:
        given = environment.get(PREFIX + flag.removeprefix("--").upper().replace("-", "_"), "")
        if more.get("action") == "append":
            default = _converted(parser, flag, kind, given.split(), more.get("choices"))
        elif given:
            (default,) = _converted(parser, flag, kind, [given], more.get("choices"))
        parser.add_argument(flag, type=kind, default=default, **more)

    here = environment.get("STOKER_NODE_NAME") or socket.gethostname()
    add("--host", default="0.0.0.0", help="the address to listen on (default 0.0.0.0)")
    add("--port", _port, PORT, help=f"0: any free one (default {PORT})")
    add("--node", default=here, help="this node's name (default $STOKER_NODE_NAME, else the host's name)")
    add("--state", Path, metavar="DIR", help="where ledger and spool are kept; absent: in memory, lost at a restart")
    add("--interval", _seconds, 1.0, metavar="TIME", help="between two polls (default 1s)")
    add("--stuck-after", _seconds, 10.0, metavar="TIME", help="a silent NVML child is replaced then (default 10s)")
    add("--allocation", default="none", choices=("none", "kubelet", "workers"), help="who knows who holds which GPU")
    add("--kubelet-socket", Path, Path(KUBELET_SOCKET), metavar="FILE", help=f"default {KUBELET_SOCKET}")
    add("--workers", Path, metavar="DIR", help="the workers' folders of `stoker up` (--allocation workers)")
    add("--api-url", default="", metavar="URL", help="Stoker's api: takes receipts and GPU events, knows pods' jobs")
    add("--api-token-file", Path, metavar="FILE")
    add("--api-ca", Path, metavar="FILE", help="certificates to trust there (PEM); absent: the system's")
    names = ", ".join(COLLECTORS)
    add("--no-collector", choices=COLLECTORS, action="append", metavar="NAME", help=f"leave out one of: {names}")
    add(
        *("--expected-gpus", _expected),
        action="append",
        metavar="[NODE=]N",
        help="GPUs that have to be here; with a pattern: on nodes of that name, the longest that matches counts "
        "(default: those that were here in the last 30 days)",
    )
    add("--retired-gpu", action="append", metavar="UUID", help="one that was taken out for good: it is not missed")
    add("--simulated-gpus", _count, 0, metavar="N", help="slots SIM-0 … instead of hardware (`stoker up`)")
    add("--tls-cert", Path, metavar="FILE", help="certificate chain (PEM); followed when it changes")
    add("--tls-key", Path, metavar="FILE", help="its key (PEM)")
    add("--auth-token-file", Path, metavar="FILE", help="tokens that scrapers have to send, one a line; absent: open")
    add("--push-url", default="", metavar="URL", help="a remote-write receiver: http…/api/v1/write")
    add("--push-every", _seconds, 15.0, metavar="TIME", help="between two samples of a series (default 15s)")
    add("--push-token-file", Path, metavar="FILE")
    add("--push-basic-auth-file", Path, metavar="FILE", help="user:password")
    add("--push-ca", Path, metavar="FILE", help="certificates to trust there (PEM)")
    add("--push-header", _label, action="append", metavar="NAME=VALUE", help="sent with each: X-Scope-OrgID=team, say")
    parser.add_argument(
        "--push-allow-http",
        action="store_true",
        default=environment.get(f"{PREFIX}PUSH_ALLOW_HTTP", "") not in ("", "0", "false"),
        help="send the token or password over http:// too",
    )
    add("--push-label", _label, action="append", metavar="NAME=VALUE", help="for every series that is pushed")
    return parser


def _converted(
    parser: argparse.ArgumentParser,
    flag: str,
    kind: Callable[[str], Any],
    values: Sequence[str],
    choices: Sequence[str] | None,
) -> list[Any]:
    found = []
    for value in values:
        try:
            found.append(kind(value))
        except (ValueError, argparse.ArgumentTypeError) as error:
            parser.error(f"{flag} (from the environment): {error}")
        if choices is not None and value not in choices:
            parser.error(f"{flag} (from the environment): {value!r} is not one of {', '.join(choices)}")
    return found


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNIT_S[found[2]] if found else 0.0
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: write 1s, 500ms or 2m; 200ms to 1h")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs (0 … 1024)")
    return int(text)


def _expected(text: str) -> tuple[str, int]:
    pattern, equals, count = text.rpartition("=")
    return (pattern if equals else "*"), _count(count)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 … 65535)")
    return int(text)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, value
