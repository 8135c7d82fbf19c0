"""What each of several pods on one GPU did with it, by its own processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stoker.nvml.frames import Process

from .account import Seen
from .device_usage import DeviceUsage

_ACTIVITY = ("busy_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")


class PodUse(NamedTuple):
    sm_ratio: float
    """Of SM time since the poll before."""
    memory_bytes: int
    processes: int

    def of(self, seen: Seen) -> Seen:
        """Its part of what was seen of the GPU: one that did nothing has no part in its activity."""
        values = {**seen.values, "memory_used_bytes": float(self.memory_bytes)}
        if self.sm_ratio:
            return Seen(values, seen.doing, seen.throttled_s)
        values |= {name: 0.0 for name in _ACTIVITY if name in values}
        return Seen(values, "no_activity" if self.processes else "no_process", seen.throttled_s)


def by_pod(
    holds: Sequence[DeviceUsage], processes: Iterable[Process] | None, pods: Mapping[int, str]
) -> dict[str, PodUse] | None:
    """Pod's uid → its use. None: not known, or the GPU is not shared.

    pods: Pid → uid of its pod; processes of no pod are left out.
    """
    uids = [hold.owner.pod_uid for hold in holds]
    alike = all(hold.method == "even" and hold.until_ns is None for hold in holds)
    if len(holds) < 2 or not all(uids) or not alike or processes is None:
        return None
    use = dict.fromkeys(uids, PodUse(0.0, 0, 0))
    for one in processes:
        uid = pods.get(one.pid)
        if uid in use:
            if one.sm_ratio is None or one.memory_bytes is None:
                return None
            sm_ratio, memory_bytes, number = use[uid]
            use[uid] = PodUse(sm_ratio + one.sm_ratio, memory_bytes + one.memory_bytes, number + 1)
    return use


def weights(holds: Sequence[DeviceUsage], use: Mapping[str, PodUse] | None) -> list[float] | None:
    """Each one's part of what all of them did. None: not known, or none of them did anything."""
    did = [use[hold.owner.pod_uid].sm_ratio for hold in holds] if use else []
    return [one / sum(did) for one in did] if sum(did) > 0 else None
