"""What every rule of a job's life stands on: the time, the operator's times, the nodes.

Pure. Owns when a pod counts as over and when its node is given up. Called by `lifecycle` and `intents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import Pod

from .pod_end import over_at
from .step import Settings, Step, Surroundings


class Ground:
    """One look at one job."""

    def __init__(self, now: datetime, settings: Settings, around: Surroundings) -> None:
        self.now, self.settings, self.around = now, settings, around

    def over_at(self, pod: Pod) -> datetime | None:
        return over_at(pod, self.around.lost, self.settings.lost_margin_s)

    def is_over(self, pod: Pod) -> bool:
        at = self.over_at(pod)
        return at is not None and at <= self.now

    def given_up_at(self, pod: Pod) -> datetime | None:
        """When the node of a living pod has been silent for too long."""
        since = self.around.lost.get(pod.spec.node_name) if pod.spec.node_name else None
        return None if since is None else since + timedelta(seconds=self.settings.node_lost_s)

    def wake_at(self, pods: Iterable[Pod]) -> datetime | None:
        """When the next of these pods will count as over, or as given up."""
        times = [
            at
            for pod in pods
            if not pod.ended
            for at in (self.over_at(pod) if pod.metadata.deletion_timestamp else self.given_up_at(pod),)
            if at is not None and at > self.now
        ]
        return min(times, default=None)

    def clear(self, pods: Sequence[Pod]) -> Step:
        """Stop, release and delete pods nobody waits for any more."""
        over = [pod for pod in pods if self.is_over(pod)]
        live = [pod for pod in pods if not self.is_over(pod)]
        return Step(
            stop=tuple(pod for pod in live if pod.metadata.deletion_timestamp is None),
            release=tuple(pod for pod in over if FINALIZER_OUTCOME in pod.metadata.finalizers),
            discard=tuple(pod for pod in over if pod.metadata.deletion_timestamp is None),
            wake_at=self.wake_at(live),
        )


def first(*times: datetime | None) -> datetime | None:
    """The earliest of those that are known."""
    return min((at for at in times if at is not None), default=None)
