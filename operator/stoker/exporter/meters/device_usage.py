"""What one pod has had of one GPU or MIG device, and the receipt of it. Pure.

Invariant: allocated = active + idle + unobserved, in nanoseconds; every interval goes to exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.exporter.clock import NS, UJ, Moment
from stoker.exporter.owners import Owner
from stoker.exporter.receipts import Receipt

from .hardware import unit
from .idle import ACTIVE

SM_SHARE = "sm_share"
"""How energy of a shared GPU was divided where it is known what each pod did; else `even`."""
_RATIOS = {
    "busy": "busy_ratio",
    "sm_active": "sm_active_ratio",
    "tensor_active": "tensor_active_ratio",
    "dram_active": "dram_active_ratio",
}


@dataclass(slots=True)
class DeviceUsage:
    owner: Owner
    uuid: str
    """Of the GPU or MIG device."""
    gpu: str
    """The uuid of the GPU that it is or lies in."""
    begin_at: float
    at: float
    """Unix seconds up to which it is accounted."""
    share: float = 1.0
    """Of the whole GPU."""
    method: str = "exclusive"
    simulated: bool = False
    allocated_ns: int = 0
    unobserved_ns: int = 0
    ratio_ns: dict[str, int] = field(default_factory=dict)
    """busy, sm_active, … → the ratio's integral; absent: never known."""
    idle_ns: dict[str, int] = field(default_factory=dict)
    throttled_ns: dict[str, int] = field(default_factory=dict)
    energy_uj: dict[str, int] = field(default_factory=dict)
    """By method."""
    unobserved_uj: int = 0
    alone_uj: int = 0
    """Part of unobserved_uj while no other pod had a part of the device: this pod used it, whatever it did."""
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    idle_since: float | None = None
    seq: int = 0
    from_ns: int = 0
    """CLOCK_BOOTTIME since when it holds the device."""
    until_ns: int | None = None
    """When it let go, as soon as that is known: it has ended once everything up to then is accounted."""
    ended_ns: int | None = None
    """CLOCK_BOOTTIME when it was found to have ended."""
    confirmed: bool = True
    """False while it is not known whether it still holds; what would be its waits in `pending_…`."""
    pending_ns: int = 0
    pending_uj: int = 0
    unmetered_ns: int = 0
    """Its part of the time since the GPU's energy was last read."""

    def same_pod(self, owner: Owner) -> bool:
        """A pod's or job's uid may come later than its name; a name may come back as another pod."""
        mine = self.owner
        return (mine.pod_namespace, mine.pod_name) == (owner.pod_namespace, owner.pod_name) and all(
            known == new or not known or not new
            for known, new in ((mine.pod_uid, owner.pod_uid), (mine.job_uid, owner.job_uid))
        )

    def hold_on(self, owner: Owner, share: float, method: str) -> None:
        """The pod is known to hold the device; so it did all the time that this was not known."""
        if owner.job_uid or not self.owner.job_uid:
            self.owner = owner
        self.share, self.method, self.ended_ns, self.until_ns = share, method, None, None
        self._confirm()

    def let_go(self, until_ns: int, accounted_ns: int) -> None:
        """It held the device until then. accounted_ns: Up to when its time was accounted, in doubt perhaps."""
        self.until_ns = until_ns
        if self.confirmed:
            return
        behind_ns, all_ns = self._newest(self.pending_ns, accounted_ns - until_ns), self.pending_ns
        self.pending_uj -= self.pending_uj * behind_ns // max(all_ns, 1)
        self.pending_ns -= behind_ns
        self.unmetered_ns -= self._newest(self.unmetered_ns, accounted_ns - until_ns)
        self._confirm()

    def held_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of that time it held the device."""
        end_ns = end_ns if self.until_ns is None else min(end_ns, self.until_ns)
        return max(0, end_ns - max(begin_ns, self.from_ns))

    def _confirm(self) -> None:
        """What waited in doubt is its own."""
        self.confirmed = True
        self.allocated_ns += self.pending_ns
        self.unobserved_ns += self.pending_ns
        self._add_unobserved_energy(self.pending_uj)
        self.pending_ns = self.pending_uj = 0

    def end(self, now_ns: int) -> None:
        self.ended_ns, self.confirmed, self.idle_since = now_ns, True, None
        self.pending_ns = self.pending_uj = self.unmetered_ns = 0

    def unmetered_since(self, ahead_ns: int) -> int:
        """Its part of the newest time that long, as far as its energy was not read."""
        return self._newest(self.unmetered_ns, ahead_ns)

    def _newest(self, its_ns: int, newest_ns: int) -> int:
        return min(its_ns, int(max(0, newest_ns) * self.share))

    def add_unobserved(self, part_ns: int, at: float) -> None:
        self.unmetered_ns += part_ns
        self.idle_since = None
        if not self.confirmed:
            self.pending_ns += part_ns
            return
        self.at = max(self.at, at)
        self.allocated_ns += part_ns
        self.unobserved_ns += part_ns

    def add_observed(
        self, part_ns: int, now: Moment, dt_ns: int, values: Mapping[str, float], what: str | None
    ) -> None:
        """what: As `idle.doing`; None (activity not known) is unobserved, though the holder is known."""
        if what is None:
            self.add_unobserved(part_ns, now.at)
            return
        self.unmetered_ns += part_ns
        self.at = max(self.at, now.at)
        self.allocated_ns += part_ns
        for name, ratio in _RATIOS.items():
            if (value := values.get(ratio)) is not None:
                self.ratio_ns[name] = self.ratio_ns.get(name, 0) + int(unit(value) * part_ns)
        if what == ACTIVE:
            self.idle_since = None
            return
        self.idle_ns[what] = self.idle_ns.get(what, 0) + part_ns
        if self.idle_since is None:
            self.idle_since = now.at - dt_ns / NS

    def add_throttled(self, throttled_s: Mapping[str, float], share: float, dt_ns: int) -> None:
        for reason, rise_s in throttled_s.items():
            part_ns = int(min(rise_s * NS, dt_ns) * share)
            self.throttled_ns[reason] = self.throttled_ns.get(reason, 0) + part_ns

    def add_energy(self, part_uj: int, observed: bool, method: str) -> None:
        if not self.confirmed:
            self.pending_uj += part_uj
        elif observed:
            self.energy_uj[method] = self.energy_uj.get(method, 0) + part_uj
        else:
            self._add_unobserved_energy(part_uj)

    def _add_unobserved_energy(self, part_uj: int) -> None:
        self.unobserved_uj += part_uj
        if self.method == "exclusive":
            self.alone_uj += part_uj

    def see_memory(self, values: Mapping[str, float]) -> None:
        if (used := values.get("memory_used_bytes")) is not None:
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, int(used))
        if (total := values.get("memory_total_bytes")) is not None:
            self.memory_total_bytes = int(total)

    def count_on(self) -> int:
        """The next receipt's number: the time in ms, so that it rises even over state that a crash has lost."""
        self.seq = max(self.seq + 1, int(self.at * 1000))
        return self.seq

    def receipt(self, ledger: str, node: str, model: str) -> Receipt:
        """As it is now, with the number of the one before."""
        ratios = {name: self.ratio_ns[name] / NS if name in self.ratio_ns else None for name in _RATIOS}
        return Receipt(
            ledger=ledger,
            node=node,
            uuid=self.uuid,
            job_uid=self.owner.job_uid,
            attempt=self.owner.attempt,
            worker=self.owner.worker,
            project=self.owner.project,
            job_name=self.owner.job_name,
            pod_uid=self.owner.pod_uid,
            model=model,
            seq=self.seq,
            begin_at=self.begin_at,
            at=self.at,
            final=self.ended_ns is not None,
            allocated_s=self.allocated_ns / NS,
            unobserved_s=self.unobserved_ns / NS,
            busy_s=ratios["busy"],
            sm_active_s=ratios["sm_active"],
            tensor_active_s=ratios["tensor_active"],
            dram_active_s=ratios["dram_active"],
            idle_s=_seconds(self.idle_ns),
            throttled_s=_seconds(self.throttled_ns),
            energy_j=(sum(self.energy_uj.values()) + self.alone_uj) / UJ if self.energy_uj or self.alone_uj else None,
            unobserved_energy_j=self.alone_uj / UJ,
            method=SM_SHARE if SM_SHARE in self.energy_uj else self.method,
            memory_peak_bytes=self.memory_peak_bytes,
            memory_total_bytes=self.memory_total_bytes,
            idle_since=self.idle_since,
            simulated=self.simulated,
        )


def _seconds(by: Mapping[str, int]) -> dict[str, float]:
    return {name: ns / NS for name, ns in by.items()}
