"""All meters of a node. The poll loop gives it frames, events and allocations, and asks what to show, write and send.

Not thread-safe: one thread owns it. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from stoker.exporter.clock import NS, Moment
from stoker.exporter.owners import Allocation, Owner
from stoker.exporter.receipts import Receipt
from stoker.nvml.frames import Frame, GpuEvent, GpuReading

from .account import Account, Seen
from .allocated import Allocated
from .device_usage import DeviceUsage
from .flat_values import account_values, gpu_state, job_state
from .ledger import FORGET_S, Ledger
from .live import LiveGpu
from .pod_use import PodUse, by_pod, weights
from .snapshot import Books, GpuState

GAP_INTERVALS = 2.5
"""Readings further apart say nothing of the time between them."""
SILENT_INTERVALS = 5
"""Without a reading for so long a GPU's time is accounted as unobserved at once, and its values are not shown."""


class NodeMeters:
    def __init__(
        self,
        ledger: Ledger,
        *,
        interval_s: float,
        now: Moment,
        expected_gpus: int = 0,
        retired_gpus: Collection[str] = (),
        simulated_gpus: int = 0,
        tracks_allocation: bool = True,
    ) -> None:
        """retired_gpus: Uuids of those that were taken out for good: they are not missed, unless they come again.

        simulated_gpus: Slots instead of hardware: no frames come then.

        tracks_allocation: False where it is not known who holds what: then there are no accounts to show.
        """
        self.ledger = ledger
        self._gap_ns = round(GAP_INTERVALS * interval_s * NS)
        self._silent_ns = round(SILENT_INTERVALS * interval_s * NS)
        self._expected, self._retired = expected_gpus, frozenset(retired_gpus)
        self._without_hardware = simulated_gpus > 0
        self._tracks = tracks_allocation
        self._live: dict[str, LiveGpu] = {}
        self._allocated = Allocated(ledger)
        self._frame: Frame | None = None
        self._xids: dict[str, dict[str, float]] = {}
        self._refused_by_child: Mapping[str, int] = {}
        self._refused_before: dict[str, int] = {}
        self._polls = 0
        self._began: Moment | None = now
        """Until there was a frame, or was to be one."""
        self._success_at: float | None = None
        self._receipts: dict[tuple[str, str, int, int], Receipt] = {}
        for uuid in self._retired & ledger.accounts.keys():
            ledger.accounts[uuid].seen = False
        self._simulate([f"SIM-{number}" for number in range(simulated_gpus)], now)

    def frame(self, frame: Frame, pods: Mapping[int, str] | None = None) -> None:
        """One poll's readings. pods: Pid → uid of its pod, of processes on shared GPUs."""
        now = Moment(frame.at, frame.mono_s)
        self._frame, self._polls = frame, self._polls + 1
        self._count_refused(frame)
        listed = {reading.uuid for reading in frame.gpus}
        for uuid, live in self._live.items():
            if uuid not in listed:
                live.lose("MISSING")
        for reading in frame.gpus:
            live = self._live.setdefault(reading.uuid, LiveGpu(reading.index))
            # Workers may have begun while NVML did: that time is unobserved, not no one's.
            account = self._account(reading.uuid, reading.index, self._began or now)
            account.index, account.seen = reading.index, True
            if reading.lost:
                live.lose(reading.lost)
        self._began = None
        self._allocated.devices_are(
            {r.uuid: {mig.uuid: mig.part for mig in r.mig} for r in frame.gpus if not r.lost}, now
        )
        for reading in frame.gpus:
            if not reading.lost:
                self._read(reading, Moment(frame.at + reading.late_s, frame.mono_s + reading.late_s), pods or {})
        if self._whole(frame, now):
            self._success_at = frame.at
        self.tick(now)

    def failed(self) -> None:
        """NVML can't be asked now: nothing of the newest frame is shown any more."""
        self._frame = self._began = None
        for live in self._live.values():
            live.lose("")

    def event(self, event: GpuEvent) -> None:
        """Something between two polls."""
        if event.kind == "xid":
            mine = self._xids.setdefault(event.uuid, {})
            mine[f"xid_errors_total|{event.code}"] = mine.get(f"xid_errors_total|{event.code}", 0.0) + 1
            mine[f"xid_last_timestamp_seconds|{event.code}"] = event.at

    def allocation(self, allocation: Allocation, now: Moment) -> bool:
        """Who holds what from now on; time up to now is its former holders'. Returns whether a hold began or ended."""
        if not self._allocated.awaited:
            self.tick(now)
        self._simulate(allocation.simulated, now)
        changed = self._allocated.update(allocation, now)
        self._allocated.settle(now)
        return changed

    def tick(self, now: Moment) -> None:
        """Account what can't be observed: silent, lost and simulated GPUs. At least once an interval."""
        for uuid, account in self.ledger.accounts.items():
            live = self._live.get(uuid)
            silent = live is None or live.read_ns is None or live.lost or now.mono_ns - live.read_ns > self._silent_ns
            if account.seen and (silent or account.simulated):
                account.advance(now, self._allocated.on(uuid), None, self._allocated.doubtful(uuid))
        self._allocated.settle(now)
        self._allocated.age(now)

    def is_shared(self, uuid: str) -> bool:
        """Whether several pods hold the GPU: what each did is then worth knowing."""
        return len(self._allocated.on(uuid)) > 1

    def owners(self, uuid: str) -> tuple[Owner, ...]:
        """Who holds the GPU, or a part of it, now."""
        return tuple(hold.owner for hold in self._allocated.on(uuid))

    def gpus(self, now: Moment) -> tuple[GpuState, ...]:
        """What is known of the hardware at this moment; values of a poll that is too old or failed are not there."""
        fresh = self._fresh(now)
        states = [
            gpu_state(
                account,
                fresh,
                self._live.get(uuid),
                self._xids.get(uuid, {}),
                self._allocated.view(uuid) if self._tracks or account.simulated else None,
                now,
            )
            for uuid, account in self.ledger.accounts.items()
            if account.seen
        ]
        return tuple(sorted(states, key=lambda state: (state.index, state.uuid)))

    def books(self) -> Books:
        """The accounts and every job's totals."""
        accounts = self.ledger.accounts
        shown = {uuid: account_values(one) for uuid, one in accounts.items() if self._tracks and one.seen}
        jobs = (job_state(hold, accounts[hold.gpu]) for hold in self.ledger.holds if hold.owner.job_uid)
        return Books(shown, tuple(jobs))

    def receipts(self, *, final_only: bool = False) -> tuple[Receipt, ...]:
        """The newest of every job's hold; the caller sends them once the ledger that holds them is on disk.

        final_only: Of holds that have ended or are new. One that has not changed keeps its number.
        Cost: 0.5 ms for 50 holds.
        """
        accounts, before = self.ledger.accounts, self._receipts
        self._receipts, found = {}, []
        for hold in self.ledger.holds:
            owner = hold.owner
            if not owner.job_uid:
                continue
            key = (hold.uuid, owner.job_uid, owner.attempt, owner.worker)
            receipt = before.get(key)
            if receipt is None or not final_only or hold.ended_ns is not None:
                newest = hold.receipt(self.ledger.id, self.ledger.node, accounts[hold.gpu].model)
                receipt = newest if newest == receipt else replace(newest, seq=hold.count_on())
                found.append(receipt)
            self._receipts[key] = receipt
        return tuple(found)

    def exporter_values(self, now: Moment) -> dict[str, float]:
        """Values of `catalogue.EXPORTER` that the meters know."""
        frame = self._fresh(now)
        values = {
            "collect_success": float(self._without_hardware or (frame is not None and self._whole(frame, now))),
            "polls_total": float(self._polls),
            "gpus_visible": float(self._simulated() + (0 if frame is None else self._visible(frame))),
            "gpus_expected": float(self._expects(now)),
            **{f"gpu_missing|{uuid}": 1.0 for uuid in self._missing(now)},
        }
        if self._success_at is not None:
            values["last_success_timestamp_seconds"] = self._success_at
        if frame is not None:
            values["collect_seconds"] = frame.took_s
        for call in {*self._refused_before, *self._refused_by_child}:
            times = self._refused_before.get(call, 0) + self._refused_by_child.get(call, 0)
            values["collect_errors_total|" + "|".join(call.rsplit(":", 1))] = float(times)
        return values

    def _read(self, reading: GpuReading, now: Moment, pods: Mapping[int, str]) -> None:
        live, account = self._live[reading.uuid], self.ledger.accounts[reading.uuid]
        account.model = reading.info.get("model", account.model)
        observed_ns = live.read(reading, now.mono_ns, self._gap_ns)
        holds, doubtful = self._allocated.on(reading.uuid), self._allocated.doubtful(reading.uuid)
        use = by_pod(holds, reading.processes, pods) if pods else None
        seen = None
        if observed_ns is not None:
            devices = live.seen(holds)
            seen = [_of_hold(hold, devices.get(hold.uuid), use) for hold in holds]
        account.advance(now, holds, seen, doubtful)
        ahead_ns = max(0, account.accounted_ns - now.mono_ns)  # of a poll that hung after it read the energy
        energy_at_ns = account.energy.at_ns
        used = account.energy.read(reading.values, now.mono_ns, observed_ns)
        if used is not None:
            observed = observed_ns is not None and used.span_ns <= self._gap_ns
            account.spend(used, holds, ahead_ns, observed, doubtful, weights(holds, use))
        if account.energy.at_ns != energy_at_ns:
            for hold in holds:
                hold.unmetered_ns = hold.unmetered_since(ahead_ns)

    def _account(self, uuid: str, index: int, now: Moment) -> Account:
        accounts = self.ledger.accounts
        if uuid not in accounts:
            accounts[uuid] = Account(uuid, index, begin_at=now.at, accounted_ns=now.mono_ns)
        return accounts[uuid]

    def _simulate(self, uuids: Iterable[str], now: Moment) -> None:
        for uuid in uuids:
            index = int("".join(filter(str.isdigit, uuid)) or 0)
            account = self._account(uuid, index, now)
            account.simulated = account.seen = True
            account.model = "simulated"

    def _fresh(self, now: Moment) -> Frame | None:
        """The newest frame unless it is too old to show."""
        frame = self._frame
        return frame if frame is not None and now.mono_ns - round(frame.mono_s * NS) <= self._silent_ns else None

    def _whole(self, frame: Frame, now: Moment) -> bool:
        return self._visible(frame) + self._simulated() >= self._expects(now)

    def _visible(self, frame: Frame) -> int:
        return sum(not reading.lost for reading in frame.gpus)

    def _expects(self, now: Moment) -> int:
        seen = sum(one.seen for one in self.ledger.accounts.values())
        return max(self._expected + self._simulated(), seen + len(self._missing(now)))

    def _missing(self, now: Moment) -> list[str]:
        """Uuids of GPUs that were here not long ago, and in this boot never."""
        since_ns = now.mono_ns - FORGET_S * NS
        return [
            one.uuid
            for one in self.ledger.accounts.values()
            if not (one.seen or one.simulated or one.uuid in self._retired) and one.accounted_ns >= since_ns
        ]

    def _simulated(self) -> int:
        return sum(one.simulated and one.seen for one in self.ledger.accounts.values())

    def _count_refused(self, frame: Frame) -> None:
        """A child counts from its own beginning."""
        for call, times in self._refused_by_child.items():
            if frame.refused.get(call, 0) < times:
                self._refused_before[call] = self._refused_before.get(call, 0) + times
        self._refused_by_child = frame.refused


def _of_hold(hold: DeviceUsage, seen: Seen | None, use: Mapping[str, PodUse] | None) -> Seen | None:
    return seen if seen is None or use is None else use[hold.owner.pod_uid].of(seen)
