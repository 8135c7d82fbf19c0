"""What every lifecycle rule needs: the time, the operator's settings and the facts about nodes and surroundings.

Pure. Owns when a pod counts as over and when its node is given up. Called by `lifecycle`, `intents` and `admission`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.pod import Pod

from .pod_end import over_at
from .step import Facts, Settings, Step


class Context:
    """For one step of one job."""

    def __init__(self, now: datetime, settings: Settings, facts: Facts) -> None:
        self.now, self.settings, self.facts = now, settings, facts

    def over_at(self, pod: Pod) -> datetime | None:
        return over_at(pod, self.facts.lost, self.settings.lost_margin_s)

    def is_over(self, pod: Pod) -> bool:
        at = self.over_at(pod)
        return at is not None and at <= self.now

    def given_up_at(self, pod: Pod) -> datetime | None:
        """When the node of a live pod has been silent for too long."""
        since = self.facts.lost.get(pod.spec.node_name) if pod.spec.node_name else None
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
        """Stop, release and delete pods that are no longer needed."""
        over = [pod for pod in pods if self.is_over(pod)]
        live = [pod for pod in pods if not self.is_over(pod)]
        return Step(
            stop=tuple(pod for pod in live if pod.metadata.deletion_timestamp is None),
            release=tuple(pod for pod in over if FINALIZER_OUTCOME in pod.metadata.finalizers),
            discard=tuple(pod for pod in over if pod.metadata.deletion_timestamp is None),
            wake_at=self.wake_at(live),
        )


def earliest(*times: datetime | None) -> datetime | None:
    """The earliest of those that are known."""
    return min((at for at in times if at is not None), default=None)
