"""Which pod holds which GPU and port of this node: folders are the truth on disk, this is their sum in memory.

Invariant: a GPU has at most one holder, a port at most one user; what a pod holds it holds until `release`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.node import Gpu, capability_number, capability_text

GIB = 1 << 30
_LOWEST_PORT = 10_000
_MOST_PORTS = 10_000
MOST_PEERS = 64
"""Workers of a gang that have a port each; of more, each could hardly use what names them all."""
_EPHEMERAL_PORTS = (32_768, 60_999)  # the kernel's default, where /proc does not say


class CannotLease(Exception):
    """The pod asks for what this node can't give now; the text says by how much it is short."""


class HeldByOthers(CannotLease):
    """It fits as soon as other workers have ended."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks for."""

    gpus: int = 0
    models: tuple[str, ...] = ()
    """One of them must be part of the GPU's name, case ignored; empty: any."""
    min_memory_bytes: int = 0
    min_capability: int = 0
    """As `capability_number`."""
    max_power_watts: int = 0
    """Of the enforced limit; 0: any."""
    uuid: str = ""
    """This very GPU, though it is sick: a burn-in's. Empty: any that is healthy."""


@dataclass(frozen=True, slots=True)
class WorkerLease:
    gpu_uuids: tuple[str, ...]
    simulated: bool
    master_port: int
    metrics_port: int
    peer_ports: tuple[int, ...] = ()
    """One for each worker of its gang, the first of which is the rendezvous; empty: it needs none."""


Gang = tuple[str, int]
"""(job uid, attempt): its workers share one rendezvous port."""


class LeaseTable:
    """Called on the event loop only."""

    def __init__(
        self,
        ports: Iterable[int],
        port_is_free: Callable[[int], bool],
        as_known: Callable[[tuple[Gpu, ...]], tuple[Gpu, ...]] = lambda gpus: gpus,
    ) -> None:
        """`ports`: what may be leased, in order of preference; each is tried by `port_is_free` first. `as_known`: the
        inventory's GPUs with what is known of them besides, at this moment."""
        self._ports = tuple(ports)
        self._as_known = as_known
        self._port_is_free = port_is_free
        self._next_port = 0
        self._gpus: tuple[Gpu, ...] = ()
        self._holder: dict[str, str] = {}  # GPU uuid -> pod uid
        self._metrics: dict[str, int] = {}  # pod uid -> metrics port
        self._gang_of: dict[str, Gang] = {}  # pod uid -> its gang
        self._gang_ports: dict[Gang, tuple[int, ...]] = {}  # gang -> rendezvous, peers; while a pod of it holds a lease

    @property
    def holders(self) -> dict[str, str]:
        """GPU uuid -> pod uid."""
        return dict(self._holder)

    def set_inventory(self, gpus: Sequence[Gpu]) -> None:
        """What there is now. A GPU that vanished stays with its holder."""
        self._gpus = tuple(gpus)

    def take(self, pod_uid: str, gang: Gang, wish: Wish, peers: int = 1) -> WorkerLease:
        """A lease for the pod. `peers`: how many workers of the gang want a port each.

        Raises: CannotLease; HeldByOthers where a release may be enough.
        """
        if pod_uid in self._gang_of:
            raise CannotLease(f"pod {pod_uid} holds a lease already")
        gpus = self._choose(wish)
        known = self._gang_ports.get(gang)
        peers = peers if peers <= MOST_PEERS else 1
        free = self._free_ports(1 if known else 1 + peers)
        ports = known or tuple(free[1:])
        lease = WorkerLease(
            gpu_uuids=tuple(gpu.uuid for gpu in gpus),
            simulated=any(gpu.simulated for gpu in gpus),
            master_port=ports[0],
            metrics_port=free[0],
            peer_ports=ports if 1 < len(ports) == peers else (),
        )
        self._hold(pod_uid, gang, lease)
        return lease

    def adopt(self, pod_uid: str, gang: Gang, lease: WorkerLease) -> None:
        """Hold again what a worker that was found alive holds. Raises: CannotLease if that is another's."""
        for uuid in lease.gpu_uuids:
            if self._holder.get(uuid, pod_uid) != pod_uid:
                raise CannotLease(f"GPU {uuid} is held by pod {self._holder[uuid]}")
        self._hold(pod_uid, gang, lease)

    def release(self, pod_uid: str) -> None:
        """The pod's processes are gone: what it held is free. Releasing twice changes nothing."""
        for uuid in [uuid for uuid, holder in self._holder.items() if holder == pod_uid]:
            del self._holder[uuid]
        self._metrics.pop(pod_uid, None)
        gang = self._gang_of.pop(pod_uid, None)
        if gang is not None and gang not in self._gang_of.values():
            del self._gang_ports[gang]

    def _hold(self, pod_uid: str, gang: Gang, lease: WorkerLease) -> None:
        for uuid in lease.gpu_uuids:
            self._holder[uuid] = pod_uid
        self._metrics[pod_uid] = lease.metrics_port
        self._gang_of[pod_uid] = gang
        self._gang_ports.setdefault(gang, lease.peer_ports or (lease.master_port,))

    def _choose(self, wish: Wish) -> list[Gpu]:
        """The GPUs that fit, smallest memory first: large ones stay for those who need them. Those that held back a
        gang come last.

        Real ones before simulated ones, and never both for one pod: it would compute on some and pretend on others.
        """
        if wish.gpus == 0:
            return []
        known = self._gpus if wish.uuid else self._as_known(self._gpus)
        fitting = [gpu for gpu in known if _fits(gpu, wish)]
        usable = [gpu for gpu in fitting if not gpu.unavailable]
        free = sorted(
            (gpu for gpu in usable if gpu.uuid not in self._holder),
            key=lambda gpu: (gpu.blamed, gpu.memory_bytes, gpu.index),
        )
        for simulated in (False, True):
            alike = [gpu for gpu in free if gpu.simulated is simulated]
            if len(alike) >= wish.gpus:
                return alike[: wish.gpus]
        asked = f"asks for {wish.gpus} GPU{'s' * (wish.gpus > 1)}{_like(wish)}"
        parts = [f"{len(self._gpus)} here"]
        if len(fitting) < len(self._gpus):
            parts.append(f"{len(fitting)} of that kind")
        if len(usable) < len(fitting):
            why = "; ".join(sorted({gpu.unavailable for gpu in fitting if gpu.unavailable}))
            parts.append(f"{len(fitting) - len(usable)} unavailable ({why})")
        if len(free) < len(usable):
            parts.append(f"{len(usable) - len(free)} held by other workers")
        if len(free) >= wish.gpus:
            parts.append(
                f"{sum(gpu.simulated for gpu in free)} of the free ones simulated, which are not mixed with real"
            )
        fits_later = any(sum(gpu.simulated is kind for gpu in usable) >= wish.gpus for kind in (False, True))
        raise (HeldByOthers if fits_later else CannotLease)(f"{asked}, {len(free)} free: {', '.join(parts)}")

    def _free_ports(self, count: int) -> list[int]:
        used = {*self._metrics.values(), *(port for ports in self._gang_ports.values() for port in ports)}
        found: list[int] = []
        for _ in self._ports:
            port = self._ports[self._next_port % len(self._ports)]
            self._next_port += 1  # go round: a port just released may still have late visitors
            if port not in used and self._port_is_free(port):
                found.append(port)
                if len(found) == count:
                    return found
        raise CannotLease(f"of the {len(self._ports)} ports that may be leased {len(found)} are free, {count} wanted")


def _fits(gpu: Gpu, wish: Wish) -> bool:
    if wish.uuid and gpu.uuid != wish.uuid:
        return False
    if gpu.memory_bytes < wish.min_memory_bytes or capability_number(gpu.compute_capability) < wish.min_capability:
        return False
    if wish.max_power_watts and not 0 < gpu.power_limit_watts <= wish.max_power_watts:
        return False
    return not wish.models or any(model.lower() in gpu.model.lower() for model in wish.models)


def _like(wish: Wish) -> str:
    model = f" like {' or '.join(wish.models)}" if wish.models else ""
    memory = f" with at least {wish.min_memory_bytes / GIB:.4g} GiB" if wish.min_memory_bytes else ""
    least = capability_text(wish.min_capability)
    capability = f" of compute capability {least} or more" if wish.min_capability else ""
    power = f" limited to {wish.max_power_watts} W or less" if wish.max_power_watts else ""
    named = f" named {wish.uuid}" if wish.uuid else ""
    return named + model + memory + capability + power


def leasable_ports(proc: Path = Path("/proc")) -> range:
    """The larger part of 10000..65535 that the kernel does not give out by itself, at most 10,000 ports of it.

    If that leaves nothing (a machine set up to use every port), all of 10000..65535: `port_is_free` still guards.
    """
    low, high = _EPHEMERAL_PORTS
    with contextlib.suppress(OSError, ValueError):
        low, high = map(int, (proc / "sys/net/ipv4/ip_local_port_range").read_text().split())
    below, above = range(_LOWEST_PORT, low), range(max(high + 1, _LOWEST_PORT), 65_536)
    best = max(below, above, key=len)
    return best[-_MOST_PORTS:] if len(best) >= 100 else range(_LOWEST_PORT, 65_536)


def port_is_free(port: int) -> bool:
    """Whether nothing listens there now, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
