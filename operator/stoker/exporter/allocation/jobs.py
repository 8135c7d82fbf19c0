"""Which job a pod is a worker of: asked of Stoker's api, remembered while the kubelet lists the pod.

What was counted before a pod's job was known is the job's as soon as it is (`meters.device_usage`); a pod whose job is
never learned gets no receipt. Never waits long: an api that is away is asked ever less often, and what it said stays
true meanwhile. Used by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.exporter.clock import Clock, boottime_s
from stoker.exporter.owners import Owner

from .sharing import Pod

AGAIN_S = 30.0
"""A pod that lives is asked about this often: its name may have become another's (the job was made anew). One that is
not known, or is said to have ended though the kubelet lists it, is asked about every time."""
AWAY_FIRST_S, AWAY_MAX_S = 5.0, 60.0
"""Pause after a question without answer; doubled each time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodOwner:
    """What the api says about one pod."""

    owner: Owner
    ended: bool = False
    """It holds nothing any more, whatever the kubelet lists."""


class NoAnswer(Exception):
    """The api can't be asked now; the text says why."""


class Asks(Protocol):
    def ask(self, pods: Sequence[Pod]) -> list[PodOwner]:
        """About those that the api knows. Raises: NoAnswer."""
        ...


class PodJobs:
    """`api` None: there is no api to ask, and pods have no jobs."""

    def __init__(self, api: Asks | None, clock: Clock = boottime_s) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[Pod, PodOwner] = {}
        self._asked_s: dict[Pod, float] = {}
        self._pause_s = 0.0
        self._not_before_s = clock()

    def ask_about(self, pods: Collection[Pod]) -> None:
        """Ask what has to be asked now; forget pods that are not among these."""
        for gone in self._known.keys() - pods:
            del self._known[gone]
        self._asked_s = {pod: at for pod, at in self._asked_s.items() if pod in pods}
        now = self._clock()
        due = sorted(pod for pod in pods if now - self._asked_s.get(pod, -AGAIN_S) >= self._asked_again_s(pod))
        if self._api is None or not due or now < self._not_before_s:
            return
        try:
            answers = {(one.owner.pod_namespace, one.owner.pod_name): one for one in self._api.ask(due)}
        except NoAnswer as error:
            if not self._pause_s:
                log.warning("the api can't be asked which jobs pods belong to; it is asked again: %s", error)
            self._pause_s = min(AWAY_MAX_S, max(AWAY_FIRST_S, 2 * self._pause_s))
            self._not_before_s = self._clock() + self._pause_s
            return
        self._pause_s = 0.0
        for pod in due:
            self._asked_s[pod] = now
            if pod in answers:  # else it was the job's, and its GPUs are held still
                self._known[pod] = answers[pod]

    def _asked_again_s(self, pod: Pod) -> float:
        known = self._known.get(pod)
        return AGAIN_S if known is not None and not known.ended else 0.0

    def knows(self, pod: Pod) -> bool:
        """Whether the pod's job is known, or that it has none."""
        return self._api is None or pod in self._known

    def has_ended(self, pod: Pod) -> bool:
        known = self._known.get(pod)
        return known is not None and known.ended

    def owner(self, pod: Pod) -> Owner:
        known = self._known.get(pod)
        return known.owner if known else Owner(*pod)
