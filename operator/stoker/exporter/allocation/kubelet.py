"""Who holds which GPU, as the kubelet reports it. Asked every few seconds (`EVERY_S`) on a thread of its own, never
by a scrape.

Owns the last good answer, kept for a minute: a kubelet that restarts costs nothing. Never talks to the Kubernetes API:
the pods' jobs come from Stoker's api (`jobs`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Protocol

from stoker.exporter.clock import Clock, boottime_s
from stoker.exporter.owners import Allocation
from stoker.nvml.frames import GpuReading

from .devices import Devices
from .jobs import PodJobs
from .kubelet_client import KubeletError
from .podresources import PodDevices, decode
from .reasons import REASONS, Reason
from .sharing import DeviceClaim, Pod, share_out, without_phantoms

EVERY_S = 5.0
KEEP_S = 60.0
RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")
"""Shell patterns of the resources that are GPUs."""
DRIVERS = ("gpu.nvidia.com",)
"""Shell patterns of the DRA drivers whose devices are GPUs."""

log = logging.getLogger(__name__)


class Lists(Protocol):
    def list_pods(self) -> bytes:
        """A ListPodResourcesResponse. Raises: KubeletError."""
        ...


class KubeletAllocation:
    """`owners.Allocations` on a node with a kubelet. `gpus`: the newest frame's, () before there is one."""

    def __init__(
        self,
        kubelet: Lists,
        gpus: Callable[[], Sequence[GpuReading]],
        jobs: PodJobs,
        *,
        clock: Clock = boottime_s,
    ) -> None:
        self._kubelet = kubelet
        self._gpus = gpus
        self._jobs = jobs
        self._clock = clock
        self._good_s = clock()
        self._pods: list[PodDevices] | None = None
        self._first_seen: dict[Pod, float] = {}
        self._trouble: Reason | None = None

    def read(self) -> Allocation:
        try:
            self._ask()
            return self._allocation()
        except Exception:  # (the edge: a defect here must cost attribution only)
            log.exception("reading the allocation failed")
            return self._unknown(Reason.INTERNAL_ERROR)

    def _ask(self) -> None:
        """Takes the newest answer, or keeps the last."""
        try:
            pods = decode(self._kubelet.list_pods())
        except KubeletError as error:
            self._set_trouble(error.reason, str(error))
            return
        except ValueError as error:
            self._set_trouble(Reason.KUBELET_ANSWER_UNREADABLE, str(error))
            return
        self._good_s = self._clock()
        self._pods = [pod for pod in map(self._gpus_of, pods) if pod.plugin or pod.claimed]
        listed = {_name(pod) for pod in self._pods}
        self._first_seen = {pod: self._first_seen.get(pod, self._good_s) for pod in listed}
        self._set_trouble(None, "")

    def _allocation(self) -> Allocation:
        if self._pods is None or (self._trouble is not None and self._clock() - self._good_s > KEEP_S):
            return self._unknown(self._trouble or Reason.INTERNAL_ERROR)
        self._jobs.ask_about({_name(pod) for pod in self._pods})
        devices = Devices(self._gpus())
        claims, unresolved = _claims([pod for pod in self._pods if not self._jobs.has_ended(_name(pod))], devices)
        if unresolved and not devices.gpus:
            # No frame yet: which GPUs are in doubt can't be said, so all are.
            return self._unknown(next(iter(unresolved)))
        living, ambiguous = without_phantoms(claims, self._first_seen)
        living = [claim for claim in living if claim.uuid not in ambiguous]
        held = {claim.uuid for claim in living}
        unresolved[Reason.HOLDER_AMBIGUOUS] = len(ambiguous)
        doubtful = ambiguous | (devices.holdable - held if unresolved.total() > len(ambiguous) else set())
        unresolved[Reason.DEVICE_UNSEEN] = len({uuid for uuid in held if devices.gpus and not devices.shows(uuid)})
        unresolved[Reason.OWNER_UNKNOWN] = len({c.uuid for c in living if not self._jobs.knows(c.pod)})
        return Allocation(
            self._good_s,
            share_out(living, {claim.pod: self._jobs.owner(claim.pod) for claim in living}),
            unattributed={str(reason): count for reason, count in unresolved.items() if count},
            doubtful=tuple(sorted(doubtful)),
        )

    def _gpus_of(self, pod: PodDevices) -> PodDevices:
        return replace(
            pod,
            plugin=tuple(one for one in pod.plugin if _any_matches(one.resource, RESOURCES)),
            claimed=tuple(one for one in pod.claimed if _any_matches(one.driver, DRIVERS)),
        )

    def _unknown(self, reason: Reason) -> Allocation:
        return Allocation(self._good_s, known=False, unattributed={str(reason): max(1, len(self._gpus()))})

    def _set_trouble(self, reason: Reason | None, text: str) -> None:
        """Keep why the kubelet can't be asked (None: it answers); log a change."""
        if reason is self._trouble:
            return
        self._trouble = reason
        if reason is None:
            log.info("the kubelet answers")
        else:
            log.warning("the kubelet can't be asked who holds which GPU: %s (%s) %s", text, reason, REASONS[reason].do)


def _claims(pods: Sequence[PodDevices], devices: Devices) -> tuple[list[DeviceClaim], Counter[Reason]]:
    """Every device that is listed, by uuid; how many can't be."""
    claims: list[DeviceClaim] = []
    unresolved: Counter[Reason] = Counter()
    for pod in pods:
        for one in pod.plugin:
            uuid = devices.resolve(one.id)
            if uuid is None:
                unresolved[Reason.DEVICE_ID_UNKNOWN] += 1
            else:
                claims.append(DeviceClaim(_name(pod), uuid, f"{one.resource} {one.id}"))
        for claimed in pod.claimed:
            uuid = devices.resolve_claimed(claimed.device)
            if uuid is None:
                unresolved[Reason.DRA_DEVICE_UNKNOWN] += 1
            else:
                claims.append(DeviceClaim(_name(pod), uuid))
    return claims, unresolved


def _name(pod: PodDevices) -> Pod:
    return pod.namespace, pod.name


def _any_matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
