"""The meters' state as flat values, as `snapshot` names them. Pure; decides what is known well enough to be shown."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.exporter.clock import NS, UJ, Moment
from stoker.exporter.receipts import IDLE_CLASSES
from stoker.nvml.frames import Frame

from .account import UNOBSERVED, Account
from .allocated import View
from .device_usage import DeviceUsage
from .energy import COUNTER, INTEGRAL
from .idle import ACTIVE
from .live import LiveGpu
from .snapshot import GpuState, JobState

_INFO = ("model", "pci_bus_id", "compute_capability", "mig", "serial", "vbios")


def gpu_state(
    account: Account,
    frame: Frame | None,
    live: LiveGpu | None,
    xids: Mapping[str, float],
    view: View | None,
    now: Moment,
) -> GpuState:
    """frame: The newest one if it is fresh. view: None where it is not known who holds what."""
    index, uuid = account.index, account.uuid
    shares = view.shares if view is not None else ()
    if account.simulated:
        info = {"model": account.model, "simulated": "true"}
        return GpuState(index, uuid, info, {"up": 1.0}, shares)
    if frame is None or live is None or live.reading is None:
        # Lost is known; of a poll that failed as a whole nothing is.
        up = {"up": 0.0} if frame is not None and (live is None or live.lost) else {}
        return GpuState(index, uuid, {}, {**xids, **up}, shares)
    reading = live.reading
    info = {name: reading.info[name] for name in _INFO if reading.info.get(name)}
    info |= {"driver": frame.driver, "cuda": frame.cuda, "simulated": "false"}
    values = {**live.values, **_energy(account), **xids, "up": 1.0}
    if reading.processes is not None:
        values["processes"] = float(len(reading.processes))
    if view is not None:
        values |= _held(live, view, now)
    return GpuState(index, uuid, info, values, shares, live.mig)


def account_values(account: Account) -> dict[str, float]:
    values = {f"account_seconds_total|{name}": ns / NS for name, ns in account.time_ns.items()}
    source = account.energy.source
    if source:
        values |= {f"account_joules_total|{name}": uj / UJ for name, uj in account.energy_uj.items()}
    if source == INTEGRAL and not account.energy_uj[UNOBSERVED]:
        del values[f"account_joules_total|{UNOBSERVED}"]  # power × time of what was not observed is not known
    return values


def job_state(hold: DeviceUsage, account: Account) -> JobState:
    """Idle classes are there once anything was observed: a series that begins at 1 hides its first second."""
    values = {"allocated_seconds_total": hold.allocated_ns / NS, "unobserved_seconds_total": hold.unobserved_ns / NS}
    values |= {f"{name}_seconds_total": ns / NS for name, ns in hold.ratio_ns.items()}
    if hold.allocated_ns > hold.unobserved_ns:
        values |= {f"idle_seconds_total|{name}": hold.idle_ns.get(name, 0) / NS for name in IDLE_CLASSES}
    values |= {f"throttled_seconds_total|{reason}": ns / NS for reason, ns in hold.throttled_ns.items()}
    values |= {f"energy_joules_total|{method}": uj / UJ for method, uj in hold.energy_uj.items()}
    counted = bool(hold.energy_uj) and account.energy.source == COUNTER
    if hold.alone_uj or (counted and "exclusive" in hold.energy_uj):
        values["energy_joules_total|exclusive_unobserved"] = hold.alone_uj / UJ
    if hold.unobserved_uj or counted:
        values["unobserved_energy_joules_total"] = hold.unobserved_uj / UJ
    if hold.memory_peak_bytes is not None:
        values["memory_peak_bytes"] = float(hold.memory_peak_bytes)
    return JobState(account.index, hold.uuid, hold.owner, values)


def _energy(account: Account) -> dict[str, float]:
    source = account.energy.source
    if not source:
        return {}
    integral = {"energy_joules_total": account.energy.integral_uj / UJ} if source == INTEGRAL else {}
    return {f"energy_source_info|{source}": 1.0, **integral}


def _held(live: LiveGpu, view: View, now: Moment) -> dict[str, float]:
    """What can be said by comparing use and holders."""
    if view.holds:
        seen = live.seen(view.holds)
        idle = [hold.idle_since for hold in view.holds]
        if any(hold.uuid in seen and seen[hold.uuid].doing == ACTIVE for hold in view.holds):
            return {"idle_seconds": 0.0}
        # Idle after a time that was not observed, or its activity is unknown: not known, which is no 0.
        return {} if None in idle else {"idle_seconds": max(0.0, now.at - max(at for at in idle if at is not None))}
    in_use = live.in_use()
    if not view.known or in_use is None:
        return {}
    processes = live.reading.processes if live.reading is not None else None
    unowned = {} if processes is None else {"unowned_processes": float(len(processes))}
    return {"unallocated_use": float(in_use), **unowned}
