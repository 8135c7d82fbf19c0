"""Which holds there are on each GPU, by the newest allocation. Pure.

A hold that is not in it has ended, unless that is in doubt: then it waits, and what would be its is kept for it. MIG
devices have their slices of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stoker.exporter.clock import NS, Moment
from stoker.exporter.owners import Allocation, Holding

from .device_usage import DeviceUsage
from .energy import COUNTER
from .ledger import Ledger
from .snapshot import Share

MAX_AGE_S = 90.0
"""An allocation older than that is none: its reader hangs. (A good map is kept for 60 s by `allocation/` itself.)"""
SETTLE_S = 30.0
"""A hold that has let go waits so long for the reading of the energy that it used last."""
KEEP_ENDED_S = 360.0
"""A hold's counters stay for so long, that the last values are scraped."""


class View(NamedTuple):
    """One GPU's holders as they are shown."""

    known: bool
    shares: tuple[Share, ...]
    holds: tuple[DeviceUsage, ...]


class Allocated:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._allocation: Allocation | None = None
        self._mig: dict[str, dict[str, float]] = {}
        """GPU's uuid → MIG device's uuid → its part of the GPU."""
        self._places: dict[str, tuple[str, float]] = {}
        """Device's uuid → its GPU's, and its part of that."""
        self._active: dict[str, list[DeviceUsage]] = {}
        """GPU's uuid → holds."""
        self._doubtful: frozenset[str] = frozenset()
        self._known = self._began = False
        self._since_ns = 0
        """Since when, at the earliest, a new hold lasts that does not say so itself."""
        self._sort()

    def devices_are(self, mig: Mapping[str, Mapping[str, float]], now: Moment) -> None:
        """GPU's uuid → its MIG devices' uuids → their parts of it, of every GPU that answers."""
        self._mig |= {uuid: dict(devices) for uuid, devices in mig.items()}
        places = {uuid: (uuid, 1.0) for uuid in self._ledger.accounts}
        for gpu, devices in self._mig.items():
            places |= {uuid: (gpu, part) for uuid, part in devices.items()}
        if places != self._places:
            self._places = places
            self._apply(now)

    def update(self, allocation: Allocation, now: Moment) -> bool:
        """Whether a hold began or ended by that."""
        self._allocation = allocation
        self._places |= {uuid: (uuid, 1.0) for uuid in self._ledger.accounts}
        return self._apply(now)

    def age(self, now: Moment) -> None:
        """Forget what is too old: an allocation that is not renewed, holds that ended long ago."""
        if self._known and self._allocation is not None and now.mono_s - self._allocation.mono_s > MAX_AGE_S:
            self._allocation = None
            self._apply(now)
        before_ns = now.mono_ns - round(KEEP_ENDED_S * NS)
        holds = self._ledger.holds
        if any(hold.ended_ns is not None and hold.ended_ns < before_ns for hold in holds):
            holds[:] = [hold for hold in holds if hold.ended_ns is None or hold.ended_ns >= before_ns]

    def settle(self, now: Moment) -> None:
        """End the holds that have let go, once all is theirs that is theirs."""
        leaving = [hold for holds in self._active.values() for hold in holds if hold.until_ns is not None]
        for hold in leaving:
            account, until_ns = self._ledger.accounts[hold.gpu], hold.until_ns or 0
            metered = account.energy.source != COUNTER or account.energy.at_ns >= until_ns
            if account.accounted_ns >= until_ns and (metered or now.mono_ns - until_ns > SETTLE_S * NS):
                hold.end(now.mono_ns)
        if any(hold.ended_ns is not None for hold in leaving):
            self._sort()

    @property
    def awaited(self) -> bool:
        """Whether an allocation may still say who held what while this process was not there."""
        return not self._began and bool(self._active)

    def on(self, gpu: str) -> list[DeviceUsage]:
        """Holds on the GPU and its MIG devices, those in doubt too."""
        return self._active.get(gpu, [])

    def doubtful(self, gpu: str) -> bool:
        """Whether a pod may hold it that is not known."""
        return not self._known or gpu in self._doubtful

    def view(self, gpu: str) -> View:
        sure = tuple(hold for hold in self.on(gpu) if hold.confirmed and hold.until_ns is None)
        shares = tuple(Share(hold.uuid, hold.owner, self._of_device(hold), hold.method) for hold in sure)
        return View(not self.doubtful(gpu), shares, sure)

    def _apply(self, now: Moment) -> bool:
        allocation = self._allocation
        self._known = allocation is not None and allocation.known
        ends = allocation.ended_s if allocation is not None else {}
        holdings = allocation.holdings if allocation is not None and self._known else ()
        in_doubt = allocation.doubtful if allocation is not None else ()
        self._doubtful = frozenset(self._places.get(uuid, (uuid, 0.0))[0] for uuid in in_doubt)
        before = len(self._ledger.holds)
        self._since_ns, self._began = 0 if self._began else now.mono_ns, self._began or self._known
        holding_on = {id(hold) for hold in (self._hold(holding, now) for holding in holdings) if hold is not None}
        for holding in allocation.brief if allocation is not None and self._known else ():
            self._hold(holding, now)  # and `ends` says until when
        gone = [hold for hold in self._ledger.holds if hold.ended_ns is None and id(hold) not in holding_on]
        for hold in gone:
            until_s = ends.get(hold.owner.pod_uid)
            if until_s is None or hold.until_ns is not None:
                continue
            hold.let_go(min(round(until_s * NS), now.mono_ns), self._ledger.accounts[hold.gpu].accounted_ns)
        gone = [hold for hold in gone if hold.until_ns is None]
        ended = [hold for hold in gone if not self.doubtful(hold.gpu)]
        for hold in gone:
            hold.confirmed = False
        for hold in ended:
            hold.end(now.mono_ns)
        self._sort()
        return bool(ended) or len(self._ledger.holds) > before

    def _hold(self, holding: Holding, now: Moment) -> DeviceUsage | None:
        """The hold that this holding goes on with or begins. None: on a device that was never seen."""
        simulated = self._allocation is not None and holding.uuid in self._allocation.simulated
        of_uuid = (hold for hold in self._ledger.holds if hold.uuid == holding.uuid)
        hold = next((hold for hold in of_uuid if hold.same_pod(holding.owner)), None)
        place = self._places.get(holding.uuid)
        if place is None and hold is None:
            return None
        gpu, part = place or (hold.gpu if hold else "", 1.0)
        method = "mig_slices" if gpu != holding.uuid else holding.method
        if hold is None:
            account = self._ledger.accounts[gpu]
            # Its first interval is the one under way, or a part of it.
            since_ns = self._since_ns if holding.since_s is None else round(holding.since_s * NS)
            from_ns = max(account.accounted_ns, min(since_ns, now.mono_ns))
            begin_at = now.at - max(0, now.mono_ns - from_ns) / NS
            hold = DeviceUsage(holding.owner, holding.uuid, gpu, begin_at, begin_at, simulated=simulated)
            hold.from_ns = from_ns
            self._ledger.holds.append(hold)
        share = hold.share if place is None else part * max(0.0, min(1.0, holding.share))
        hold.hold_on(holding.owner, share, method)
        return hold

    def _of_device(self, hold: DeviceUsage) -> float:
        part = self._places.get(hold.uuid, (hold.gpu, 1.0))[1]
        return min(1.0, hold.share / part)

    def _sort(self) -> None:
        self._active = {}
        for hold in self._ledger.holds:
            if hold.ended_ns is None:
                self._active.setdefault(hold.gpu, []).append(hold)
