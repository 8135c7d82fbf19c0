"""What the api pushes: its own metrics, trainers', and on one machine the exporter's. Called by `services`.

Owns whose they are, as `/v1/sd/prometheus` has it. Sending is `stoker.push`'s.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.push.relay import Relay, Source
from stoker.push.sender import PushOptions

from .deps import Deps
from .scrape_targets import API_JOB, server_targets, worker_targets


@dataclass(frozen=True)
class MetricsPush:
    options: PushOptions
    token_file: Path | None = None
    """For the metrics of other servers, where they need one."""


def relay(deps: Deps, metrics_push: MetricsPush, own: Callable[[], bytes]) -> Relay:
    """`own`: this server's page. Raises: OSError, ssl.SSLError where the CA file can't be used."""
    here = socket.gethostname()

    async def gather() -> Sequence[Source]:
        found = [Source({"job": API_JOB, "instance": here}, text=own())]
        token = metrics_push.token_file.read_text().strip() if metrics_push.token_file else ""
        for target in server_targets(deps):
            if target.labels["job"] != API_JOB:
                labels = {**target.labels, "instance": here}
                found.append(Source(labels, address=target.address, token=token))
        for target in worker_targets(deps):
            # Every machine's loopback is called alike.
            labels = {**target.labels, "instance": target.address.replace("127.0.0.1", here)}
            found.append(Source(labels, address=target.address, foreign=True))
        return found

    return Relay(metrics_push.options, gather)
