"""Where a worker of this machine serves metrics now: on its leased port, if something listens there.

A user's script may or may not serve any, so the port is tried. Called by the api through its own protocol.
"""

from __future__ import annotations

import socket

from stoker.spec.pod import Pod

from .folders import Places, WorkerFolder

_HOST = "127.0.0.1"
_CONNECT_S = 0.2


def worker_address(places: Places, pod: Pod) -> str | None:
    """host:port, or None where nothing listens. Cost: under a millisecond on loopback."""
    launch = WorkerFolder(places.workers, pod.uid).read_launch() if pod.uid else None
    if launch is None or launch.metrics_port is None:
        return None
    try:
        socket.create_connection((_HOST, launch.metrics_port), timeout=_CONNECT_S).close()
    except OSError:
        return None
    return f"{_HOST}:{launch.metrics_port}"
