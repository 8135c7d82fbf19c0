"""Whether this worker is still wanted: asked of the api, and read from its other answers.

A node that is cut off from the cluster, or whose kubelet died, stops no process; its worker would compute beside the
job's next attempt. Owns how often to ask and which answer means stop: only a 200 that says so explicitly.
The same answers name the sessions (`stoker exec`) that users have asked for, and say that the gang is stalled.
Never stops anything itself and knows no thread: `reporting` calls.
"""

from __future__ import annotations

import os
import time

from .folder import Launch
from .light_stdlib import parse_json, render_json
from .link import Answer, ApiLink, Refused

MYPY = False
if MYPY:
    from typing import Any, Callable

ALIVE_PATH = "/v1/report/alive"
ASK_EVERY_S = 5.0
ASK_MAX_S = 30.0
ASK_SHARE = 50
"""An answer takes a fiftieth of the pause at most, up to `ASK_MAX_S`: a busy api is asked less often."""
ASK_UNKNOWN_S = 300.0
"""Where the api has no such endpoint: an older one, which may be replaced while the worker runs."""
MOST_STALL_S = 60.0
_WHY_CHARS = 300
_SESSIONS = 64


class AliveLane:
    """Asks unless another answer has just brought it."""

    def __init__(
        self,
        launch: Launch,
        on_stop: Callable[[str], None] | None,
        on_sessions: Callable[[list[str]], None] | None = None,
        on_stall: Callable[[float, str], None] | None = None,
    ) -> None:
        """`on_stop` gets the reason, once; `on_sessions` the ids of sessions, as often as the api names them.

        `on_stall` gets in how many seconds the gang's ranks are to be ended, for they make no progress, and the
        message, as often as the api says so.
        """
        self._body = render_json(who(launch)).encode()
        self._on_stop = on_stop
        self._on_sessions = on_sessions
        self._on_stall = on_stall
        self._stopped = False
        self._ask_at = time.monotonic() + ASK_EVERY_S * os.urandom(1)[0] / 256

    def pending(self) -> bool:
        return not self._stopped

    def ready_in(self, now: float, _hurry: bool) -> float:
        return self._ask_at - now

    def send(self, link: ApiLink, _hurry: bool) -> None:
        """Raises: Unreachable, Refused."""
        self._wait(ASK_EVERY_S)  # whatever comes of it
        began = time.monotonic()
        answer = link.post(ALIVE_PATH, self._body, "application/json")
        if answer.status in (404, 405):
            self._wait(ASK_UNKNOWN_S)
        elif not self.take(answer, time.monotonic() - began):
            raise Refused(answer.status, answer.retry_after_s)

    def take(self, answer: Answer, took_s: float) -> bool:
        """Take an answer of the api to any request; whether it says if the worker is to stop."""
        orders = document(answer) if answer.status == 200 else {}
        stop = orders.get("stop")
        if not isinstance(stop, bool):
            return False
        self._wait(min(ASK_MAX_S, max(ASK_EVERY_S, ASK_SHARE * took_s)))
        stalled = orders.get("stalled")
        if isinstance(stalled, dict) and self._on_stall is not None:
            in_s = stalled.get("inS")
            if isinstance(in_s, (int, float)):
                self._on_stall(min(MOST_STALL_S, max(0.0, float(in_s))), _sentence(stalled.get("why")))
        if stop and not self._stopped and self._on_stop is not None:
            self._stopped = True
            self._on_stop(_sentence(orders.get("why")))
        sessions = orders.get("sessions")
        if isinstance(sessions, list) and self._on_sessions is not None:
            ids = [one for one in sessions[:_SESSIONS] if isinstance(one, str)]
            if ids:
                self._on_sessions(ids)
        return True

    def _wait(self, pause_s: float) -> None:
        # Spread out: the workers of a gang start together.
        self._ask_at = time.monotonic() + pause_s * (0.8 + os.urandom(1)[0] / 640)


def who(launch: Launch) -> dict[str, Any]:
    """Which worker reports."""
    return {
        "podUid": launch.pod_uid,
        "jobUid": launch.job_uid,
        "project": launch.project,
        "jobName": launch.job_name,
        "attempt": launch.attempt,
        "worker": launch.worker,
    }


def document(answer: Answer) -> dict[str, Any]:
    """The answer's JSON object; empty where it is none."""
    try:
        found = parse_json(answer.body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(why: object) -> str:
    """One line for the log, whatever the api sent."""
    text = why if isinstance(why, str) else ""
    return "".join(c if c.isprintable() else " " for c in text[:_WHY_CHARS]).strip() or "it gave no reason"
