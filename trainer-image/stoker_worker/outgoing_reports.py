"""What a worker has to report: the newest progress, and the log by offset. One post at a time, each may be repeated.

Owns what is sent next and what the api's answer means. Never waits and knows no thread: `reporting` calls.
"""

from __future__ import annotations

import time

from .alive import document, who
from .folder import Launch
from .light_stdlib import render_json
from .link import Answer, ApiLink, Refused
from .spool import Spool, SpoolReader

MYPY = False
if MYPY:
    from typing import Any, Callable

PROGRESS_PATH = "/v1/report/progress"
LOG_PATH = "/v1/report/log"
CHUNK_BYTES = 1 << 20
LAST_CHUNK_BYTES = 1 << 18
"""In the worker's last seconds: smaller, so that a slow line shows that it moves."""
GATHER_S = 0.5
GATHER_MAX_S = 10.0
ANSWER_SHARE = 20
"""A post's answer takes a twentieth of the pause at most: a busy api is asked less often, by every worker alike."""
KEEP_BYTES = 8 << 20
"""What was acknowledged stays on disk this long: an api whose machine lost its newest writes asks for it again."""


class ProgressLane:
    """The newest progress wins; what the api did not take in time is replaced by what came after it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._newest: dict[str, Any] | None = None

    def offer(self, progress: dict[str, Any]) -> None:
        self._newest = progress

    def pending(self) -> bool:
        return self._newest is not None

    def ready_in(self, _now: float, _hurry: bool) -> float:
        return 0.0

    def send(self, link: ApiLink, _hurry: bool) -> None:
        """Raises: Unreachable, Refused."""
        progress = self._newest
        body = dict(who(self._launch), progress=progress)
        answer = link.post(PROGRESS_PATH, render_json(body).encode(), "application/json")
        # What the api refuses as wrong it will refuse again: that progress is done with. 401: perhaps an old token.
        if answer.status >= 500 or answer.status in (401, 408, 429):
            raise Refused(answer.status, answer.retry_after_s)
        if self._newest is progress:
            self._newest = None


class LogLane:
    """The log in chunks, each with its offset; the api's answers say where to go on."""

    def __init__(self, spool: Spool, on_answer: Callable[[Answer, float], object] | None = None) -> None:
        """`on_answer` gets every answer, and the seconds it took."""
        self._spool = spool
        self._on_answer = on_answer
        self._reader = SpoolReader(spool.path)
        self._offset = 0
        self._since: float | None = None
        self._gather_s = GATHER_S
        self._asked_back = False

    def pending(self) -> bool:
        return self._reader.size() > self._offset

    def ready_in(self, now: float, hurry: bool) -> float:
        """Seconds until it is worth a post: a whole chunk at once, less after a moment of gathering."""
        if hurry or self._reader.size() - self._offset >= CHUNK_BYTES:
            return 0.0
        if self._since is None:
            self._since = now
        return max(0.0, self._since + self._gather_s - now)

    def send(self, link: ApiLink, hurry: bool) -> None:
        """Raises: Unreachable, Refused."""
        offset = self._offset
        lost = offset < self._reader.kept_from
        if lost:  # the api wants what is not here any more: it writes a line about it and goes on behind
            offset = self._reader.kept_from
        data = self._reader.read(offset, LAST_CHUNK_BYTES if hurry else CHUNK_BYTES)
        path = "%s?offset=%d" % (LOG_PATH, offset) + ("&lost=true" if lost else "")
        began = time.monotonic()
        answer = link.post(path, data, "application/octet-stream")
        took_s = time.monotonic() - began
        self._gather_s = min(GATHER_MAX_S, max(GATHER_S, ANSWER_SHARE * took_s))
        if self._on_answer is not None:
            self._on_answer(answer, took_s)
        wanted = _offset_in(answer) if answer.status in (200, 409) else None
        if wanted is None:
            raise Refused(answer.status, answer.retry_after_s)
        went_on = wanted > offset
        self._go_on_at(wanted)
        # Asked to go back: at once, but only once, or two that disagree would keep each other busy.
        if not went_on and self._asked_back:
            raise Refused(answer.status, answer.retry_after_s)
        self._asked_back = not went_on

    def _go_on_at(self, offset: int) -> None:
        self._offset = min(offset, self._reader.size())
        self._since = None
        if self._offset > self._spool.acknowledged:
            self._spool.acknowledged = self._offset
            self._reader.free(self._offset - KEEP_BYTES)


def _offset_in(answer: Answer) -> int | None:
    offset = document(answer).get("offset")
    return offset if isinstance(offset, int) and offset >= 0 else None
