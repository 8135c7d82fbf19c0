"""A followed list of jobs as the server's stream brings it: frames → all jobs of the list, in its order. Imports no
model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .errors import unreadable
from .sse import SseFrame

J = TypeVar("J")


class JobListReader(Generic[J]):
    """A frame has what is new or has changed, and the order of all; a connection's first one has all of it."""

    def __init__(self, job: Callable[[Any], J]) -> None:
        """`job`: what to make of one as JSON."""
        self._job = job
        self._known: dict[str, J] = {}

    def __call__(self, frame: SseFrame) -> list[J] | None:
        if frame.event != "jobs":
            return None
        try:
            page = json.loads(frame.data)
            known = self._known | {item["metadata"]["uid"]: self._job(item) for item in page["items"]}
            self._known = {uid: known[uid] for uid in page["order"]}
        except (ValueError, TypeError, KeyError):
            raise unreadable("the server", "a list of jobs") from None
        return list(self._known.values())
