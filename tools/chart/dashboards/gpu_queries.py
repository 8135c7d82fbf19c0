"""Queries of the GPUs that are chosen on the dashboard `gpu`, and what their values mean. Pure strings."""

from __future__ import annotations

from .model import Query
from .queries import GPU, extreme, most

HERE = 'node=~"$node"', 'gpu=~"$gpu"'
NAME = "{{node}}/{{gpu}}"
WHERE = {"node": "Node", "gpu": "GPU"}
UP = most(GPU, "stoker_gpu_up", *HERE)
UP_STATES = {1: ("up", "green"), 0: ("LOST", "red")}
RECOVERY = {
    0: ("healthy", "green"),
    1: ("RESET", "red"),
    2: ("REBOOT NODE", "red"),
    3: ("DRAIN P2P", "orange"),
    4: ("DRAIN, RESET", "orange"),
}
XID = "stoker_gpu_xid_last_timestamp_seconds"
XID_AGO = f"time() - {most((*GPU, 'xid'), XID, *HERE)}"


def gauge(metric: str, *matchers: str, of_its: tuple[str, ...] = ()) -> str:
    return most((*GPU, *of_its), metric, *HERE, *matchers)


def each(metric: str, *matchers: str, lowest: bool = False) -> Query:
    return Query(extreme(gauge(metric, *matchers), metric, *HERE, *matchers, lowest=lowest), NAME)
