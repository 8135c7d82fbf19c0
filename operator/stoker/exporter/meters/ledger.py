"""All that must outlive the exporter: accounts and holds, as JSON and back, and over a reboot. Pure.

`ledger_file.py` keeps it on disk.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from stoker.exporter.clock import NS, Moment
from stoker.exporter.owners import Owner

from .account import Account
from .device_usage import DeviceUsage
from .energy import EnergyMeter

VERSION = 1
FORGET_S = 30 * 24 * 3600
"""A GPU that was not there for so long is not missed any more."""
_HEAD = b'{"version":1,"crc32":"%08x","state":'
_HEAD_BYTES = len(_HEAD % 0)
_FORMER_NAMES = {"told": "confirmed", "untold_energy_ns": "unmetered_ns"}
"""A hold's fields in ledgers of before 2026-11-23."""


@dataclass(slots=True)
class Ledger:
    id: str
    """Random: of another ledger, after this one was lost, all counters begin at 0."""
    node: str
    boot_id: str
    begin_at: float
    written: Moment
    accounts: dict[str, Account] = field(default_factory=dict)
    """GPU's uuid → account."""
    holds: list[DeviceUsage] = field(default_factory=list)

    def as_json(self, now: Moment) -> bytes:
        self.written = now
        state = {
            **_fields(self),
            "accounts": {uuid: {**_fields(one), "energy": _fields(one.energy)} for uuid, one in self.accounts.items()},
            "holds": [{**_fields(hold), "owner": _fields(hold.owner)} for hold in self.holds],
        }
        body = json.dumps(state, separators=(",", ":")).encode()
        return _HEAD % zlib.crc32(body) + body + b"}\n"


def _fields(thing: Any) -> dict[str, Any]:
    """Of a dataclass with slots. Cost: a tenth of `dataclasses.asdict`, which copies all it holds."""
    return {name: getattr(thing, name) for name in thing.__slots__}


def parse(data: bytes) -> Ledger:
    """Raises: ValueError if it is damaged or of another version."""
    body = data[_HEAD_BYTES:-2]
    if data[:_HEAD_BYTES] != _HEAD % zlib.crc32(body) or data[-2:] != b"}\n":
        raise ValueError(f"not a whole ledger of version {VERSION}")
    try:
        state: dict[str, Any] = json.loads(body)
        return Ledger(
            id=state["id"],
            node=state["node"],
            boot_id=state["boot_id"],
            begin_at=state["begin_at"],
            written=Moment(*state["written"]),
            accounts={uuid: _account(one) for uuid, one in state["accounts"].items()},
            holds=[_hold(one) for one in state["holds"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"fields of a ledger that this version does not know: {error!r}") from None


def resume(ledger: Ledger, now: Moment, boot_id: str) -> Ledger:
    """The ledger as it goes on now: who holds what must be learned anew.

    CLOCK_BOOTTIME of another boot is put onto this one's by the wall clock.
    """
    if ledger.boot_id != boot_id:
        away_s = max(0.0, now.at - ledger.written.at)
        shift_ns = now.mono_ns - round(away_s * NS) - ledger.written.mono_ns
        for account in ledger.accounts.values():
            account.seen = False
            account.accounted_ns += shift_ns
            account.energy.at_ns += shift_ns
            account.energy.after_boot()
        for hold in ledger.holds:
            hold.from_ns += shift_ns
            hold.until_ns = None if hold.until_ns is None else hold.until_ns + shift_ns
            hold.ended_ns = None if hold.ended_ns is None else hold.ended_ns + shift_ns
        ledger.boot_id, ledger.written = boot_id, now
    gone_ns = now.mono_ns - FORGET_S * NS
    ledger.accounts = {uuid: one for uuid, one in ledger.accounts.items() if one.accounted_ns >= gone_ns}
    ledger.holds = [hold for hold in ledger.holds if hold.gpu in ledger.accounts]
    for hold in ledger.holds:
        hold.confirmed = hold.ended_ns is not None or hold.until_ns is not None
        hold.idle_since = None
    return ledger


def _account(data: dict[str, Any]) -> Account:
    return Account(**{**data, "energy": EnergyMeter(**{**data["energy"], "power_w": None, "integral_uj": 0})})


def _hold(data: dict[str, Any]) -> DeviceUsage:
    named = {_FORMER_NAMES.get(name, name): value for name, value in data.items()}
    return DeviceUsage(**{**named, "owner": Owner(**data["owner"])})
