"""`POST /v1/report/owners`: which jobs pods of this node belong to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stoker.exporter.owners import Owner
from stoker.push.link import Link, NoResponse

from .jobs import NoAnswer, PodOwner
from .sharing import Pod

OWNERS_PATH = "/v1/report/owners"
MAX_PODS = 256
"""In one question."""
TIMEOUT_S = 3.0
"""For the link: the allocation waits for the answer."""


class OwnersRoute:
    """`jobs.Asks` of the api behind the link, which nothing else uses."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def ask(self, pods: Sequence[Pod]) -> list[PodOwner]:
        found: list[PodOwner] = []
        for first in range(0, len(pods), MAX_PODS):
            found += self._ask(pods[first : first + MAX_PODS])
        return found

    def _ask(self, pods: Sequence[Pod]) -> list[PodOwner]:
        body = {"pods": [{"namespace": namespace, "name": name} for namespace, name in pods]}
        try:
            answer = self._link.post(OWNERS_PATH, json.dumps(body).encode())
        except NoResponse as error:
            raise NoAnswer(str(error)) from None
        if answer.status != 200:
            raise NoAnswer(f"the api answered {answer.status}")
        try:
            return [_pod_owner(one) for one in answer.document()["owners"]]
        except (ValueError, KeyError, TypeError) as error:
            raise NoAnswer(f"an answer that is not the api's: {error!r}") from None


def _pod_owner(data: dict[str, Any]) -> PodOwner:
    """Raises: ValueError, KeyError, TypeError."""
    owner = Owner(
        pod_namespace=str(data["namespace"]),
        pod_name=str(data["name"]),
        pod_uid=str(data["podUid"]),
        job_uid=str(data.get("jobUid") or ""),
        project=str(data.get("project") or ""),
        job_name=str(data.get("jobName") or ""),
        attempt=int(data.get("attempt") or 0),
        worker=int(data.get("worker") or 0),
    )
    return PodOwner(owner, ended=data.get("ended") is True)
