"""Who holds which GPU on one machine without a cluster: read from the workers' folders, so it works while `stoker up`
is down.

A worker lives while its folder's `lock` is held. That is tried with a shared lock of our own, and only once the
supervisor has written `started.json`: from then on no one takes the lock to start a worker in this folder again, so
our look can't make a start fail. Before that nothing of the user's runs. Never writes: the folders are the node
agent's.

Source: `stoker.spec.worker` (files and fields), docs/worker-contract.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.exporter.clock import Clock, boottime_s
from stoker.exporter.owners import Allocation, Holding, Owner
from stoker.nvml.frames import GpuReading

from .devices import Devices
from .reasons import REASONS, Reason

EVERY_S = 1.0
ENDS_KEPT_S = 3600.0
"""For so long it is said when a worker ended: an exporter that was away meanwhile still learns it."""
_REMOVED = "."
"""Folders that are being removed begin so."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Order:
    """What launch.json says of a worker's GPUs."""

    owner: Owner
    uuids: tuple[str, ...]
    simulated: bool


@dataclass(slots=True)
class _Known:
    """A folder as it was last read."""

    identity: tuple[int, int]
    """Of launch.json: inode and mtime in ns; it is replaced when the api has moved."""
    order: _Order | None
    over: bool = False
    """The worker has ended; none is started in its folder again."""
    is_noted: bool = False
    """It was said to hold GPUs, when there were any."""
    begun_at: float = 0.0
    ended_at: float | None = None
    """Unix seconds: when started.json and the exit record were written. None: no record, or it lives."""


class FolderAllocation:
    """`owners.Allocations` by the folders in `workers`. `gpus`: the newest frame's, () before there is one."""

    def __init__(
        self,
        workers: Path,
        gpus: Callable[[], Sequence[GpuReading]] = tuple,
        clock: Clock = boottime_s,
        wall: Clock = time.time,
        began_at: float | None = None,
    ) -> None:
        """`began_at`: Unix seconds since when workers are its business; None: since now."""
        self._workers = workers
        self._gpus = gpus
        self._clock, self._wall = clock, wall
        self._good_s = clock()
        self._looked_at = wall() if began_at is None else began_at
        """Unix seconds; until the GPUs are known: the begin."""
        self._known: dict[str, _Known] = {}
        self._trouble: Reason | None = None

    def read(self) -> Allocation:
        """Cost: 45 µs a living worker, 1 µs one that has ended."""
        try:
            return self._read()
        except PermissionError as error:
            return self._unknown(Reason.WORKERS_DENIED, error)
        except OSError as error:
            return self._unknown(Reason.WORKERS_MISSING, error)
        except Exception as error:  # noqa: BLE001 (the edge: a defect here must cost attribution only)
            return self._unknown(Reason.INTERNAL_ERROR, error)

    def _read(self) -> Allocation:
        now = self._clock()
        with os.scandir(self._workers) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(_REMOVED) and entry.is_dir()]
        for gone in self._known.keys() - set(names):
            del self._known[gone]
        living = [known for known in map(self._look, names) if known is not None]
        orders = {known.order: known.begun_at for known in living if known.order is not None}
        unreadable = len(living) - len(orders)
        at, devices = self._wall(), Devices(self._gpus())
        passed_s = now - at  # from the wall clock to CLOCK_BOOTTIME
        came_and_went = [known for known in self._known.values() if self._is_new(known)]
        brief = {known.order: known.begun_at for known in came_and_went if known.order is not None}
        ends = {
            known.order.owner.pod_uid: known.ended_at + passed_s
            for known in self._known.values()
            if known.order is not None and known.ended_at is not None and known.ended_at + passed_s > now - ENDS_KEPT_S
        }
        self._good_s, self._trouble = now, None
        holdings = tuple(_holdings({order: since + passed_s for order, since in orders.items()}))
        if devices.gpus or any(order.simulated for order in (*orders, *brief)):
            self._looked_at = at
            for known in (*living, *came_and_went):
                known.is_noted = True
        held = {holding.uuid for holding in holdings}
        unseen = len({uuid for uuid in held if devices.gpus and not devices.shows(uuid)})
        why = {Reason.LAUNCH_UNREADABLE: unreadable, Reason.DEVICE_UNSEEN: unseen}
        return Allocation(
            now,
            holdings,
            # Each by itself: they held them one after another.
            brief=tuple(one for order, since in brief.items() for one in _holdings({order: since + passed_s})),
            unattributed={str(reason): count for reason, count in why.items() if count},
            doubtful=tuple(sorted(devices.holdable - held)) if unreadable else (),
            ended_s=ends,
            simulated=tuple(sorted({uuid for order in (*orders, *brief) if order.simulated for uuid in order.uuids})),
        )

    def _is_new(self, known: _Known) -> bool:
        """It has ended since the look before, and was not said to live."""
        return known.ended_at is not None and known.ended_at > self._looked_at and not known.is_noted

    def _look(self, name: str) -> _Known | None:
        """The folder's worker if it lives. Raises: PermissionError."""
        known = self._known.get(name)
        if known is not None and known.over:
            return None
        folder = self._workers / name
        try:
            found = (folder / "launch.json").stat()
        except FileNotFoundError:
            return None  # not ordered yet, or just removed
        identity = (found.st_ino, found.st_mtime_ns)
        if known is None or known.identity != identity:
            known = self._known[name] = _Known(identity, _read_order(folder))
        begun_at = _written_at(folder / "started.json")
        if begun_at is None:
            return None
        known.begun_at, known.over = begun_at, not _is_held(folder)
        if known.over:
            known.ended_at = _written_at(folder / "exit.json")
        return None if known.over else known

    def _unknown(self, reason: Reason, error: Exception) -> Allocation:
        if reason is not self._trouble:
            self._trouble = reason
            log.warning("it is not known who holds which GPU: %s (%s) %s", error, reason, REASONS[reason].do)
        return Allocation(self._good_s, known=False, unattributed={str(reason): max(1, len(self._gpus()))})


def _written_at(file: Path) -> float | None:
    """Unix seconds; None if it is not there. Raises: OSError."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return None


def _is_held(folder: Path) -> bool:
    """Whether a supervisor lives here; to be asked once it has begun. Raises: OSError."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read_order(folder: Path) -> _Order | None:
    """None if launch.json is none that we can read; its token and environment are not kept."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        data = json.loads((folder / "launch.json").read_bytes())
        owner = Owner(
            pod_namespace=str(data["project"]),
            pod_name=str(data["podName"]),
            pod_uid=str(data["podUid"]),
            job_uid=str(data["jobUid"]),
            project=str(data["project"]),
            job_name=str(data["jobName"]),
            attempt=int(data["attempt"]),
            worker=int(data["worker"]),
        )
        uuids = tuple(str(uuid) for uuid in data.get("gpuUuids") or ())
        return _Order(owner, uuids, bool(data.get("simulatedGpus")))
    return None


def _holdings(orders: Mapping[_Order, float]) -> Iterator[Holding]:
    """The node agent leases a GPU to one worker at a time; two would have equal parts.

    orders: Order → since when its worker lives.
    """
    owners: dict[str, list[tuple[Owner, float]]] = {}
    for order, since_s in orders.items():
        for uuid in order.uuids:
            owners.setdefault(uuid, []).append((order.owner, since_s))
    for uuid, holders in sorted(owners.items()):
        for owner, since_s in holders:
            yield Holding(uuid, owner, 1.0 / len(holders), "exclusive" if len(holders) == 1 else "even", since_s)
