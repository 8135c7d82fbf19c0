"""Which TCP ports may be leased: outside the kernel's ephemeral range, and free by trying."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

LOWEST = 10_000
WANTED = 10_000
_EPHEMERAL = (32_768, 60_999)  # the kernel's default, where /proc does not say


def leasable_ports(proc: Path = Path("/proc")) -> range:
    """The larger part of 10000..65535 that the kernel gives to nobody by itself, at most 10,000 ports of it.

    If that leaves nothing (a machine set up to use every port), all of 10000..65535: `is_free` still guards.
    """
    low, high = _EPHEMERAL
    with contextlib.suppress(OSError, ValueError):
        low, high = map(int, (proc / "sys/net/ipv4/ip_local_port_range").read_text().split())
    below, above = range(LOWEST, low), range(max(high + 1, LOWEST), 65_536)
    best = max(below, above, key=len)
    return best[-WANTED:] if len(best) >= 100 else range(LOWEST, 65_536)


def is_free(port: int) -> bool:
    """Whether nobody listens there now, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
