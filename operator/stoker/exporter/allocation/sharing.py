"""Several pods on one device: who counts, and which share each has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stoker.exporter.owners import Holding, Owner

Pod = tuple[str, str]
"""(namespace, name)"""


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """One pod's hold on one device."""

    pod: Pod
    uuid: str
    id: str = ""
    """The device plugin's id with its resource, which the kubelet gives to one pod at a time. Empty: a device that
    several may hold by right (DRA)."""


def without_phantoms(
    claims: Collection[DeviceClaim], first_seen: Mapping[Pod, float]
) -> tuple[list[DeviceClaim], set[str]]:
    """The claims without those of pods that have ended; uuids of devices where that is not known.

    Kubelets before 1.34 go on listing a pod that is done with what it held. The kubelet never gives one id to two pods,
    so where two have it, the one that came later holds it. Of two that were there at our first look that is not known.
    """
    by_id: dict[str, list[DeviceClaim]] = {}
    for claim in claims:
        by_id.setdefault(claim.id, []).append(claim)
    kept: list[DeviceClaim] = by_id.pop("", [])
    ambiguous: set[str] = set()
    for rivals in by_id.values():
        newest = max(first_seen[claim.pod] for claim in rivals)
        last = [claim for claim in rivals if first_seen[claim.pod] == newest]
        if len(last) == 1:
            kept += last
        else:
            ambiguous.add(last[0].uuid)
    return kept, ambiguous


def share_out(claims: Collection[DeviceClaim], owners: Mapping[Pod, Owner]) -> tuple[Holding, ...]:
    """A device's owners have equal shares of it, however many slices each asked for: a slice is no promise of time.

    Invariant: the shares of one uuid sum to 1.
    """
    pods: dict[str, set[Pod]] = {}
    for claim in claims:
        pods.setdefault(claim.uuid, set()).add(claim.pod)
    return tuple(
        Holding(uuid, owners[pod], 1.0 / len(holders), _method(uuid, len(holders)))
        for uuid, holders in sorted(pods.items())
        for pod in sorted(holders)
    )


def _method(uuid: str, owners: int) -> str:
    if uuid.startswith("MIG-"):
        return "mig_slices"  # NVML has the energy of the whole GPU only
    return "exclusive" if owners == 1 else "even"
