"""What kubelets say of volumes that they can't mount: an event has it, no pod's status.

Called by `jobs.JobReconciler` for gangs that should have their volumes by now. What can't be asked is not known: the
start time-out ends the wait all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from stoker.spec.event import MOUNT_FAILURES, MountFailure
from stoker.spec.job import TrainingJob
from stoker.spec.pod import Pod
from stoker.store.port import Store, StoreError

_MOST = 500
"""Events of one project that are looked at: its users may be able to write them, too."""
_OVER_S = 180.0
"""A kubelet tries again, and says so again, after 122 s at the latest."""
_WHY = "MountVolume."
"""How one begins that says why; others only list the volumes that are missing."""


async def failed_mounts(store: Store, job: TrainingJob, pods: Collection[Pod], now: datetime) -> dict[str, str]:
    """The newest about each of the pods, by its uid. Cost: one request, none without pods."""
    if not pods:
        return {}
    try:
        page = await store.list(MOUNT_FAILURES, namespace=job.metadata.namespace, limit=_MOST)
    except StoreError:
        return {}
    known = {pod.uid for pod in pods}
    recent = (event for event in page.items if _last_at(event) > now - timedelta(seconds=_OVER_S))
    found = sorted((event for event in recent if event.involved_object.uid in known), key=_rank)
    return {event.involved_object.uid: event.message for event in found}


def _last_at(event: MountFailure) -> datetime:
    return event.last_timestamp or event.first_timestamp


def _rank(event: MountFailure) -> tuple[bool, datetime]:
    return event.message.startswith(_WHY), _last_at(event)
