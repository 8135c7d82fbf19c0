"""Posts a worker's progress to the api, on a thread of its own: failing to report never disturbs the training.

Imported only when there is progress to report (http.client costs more than the rest of the supervisor).
"""

from __future__ import annotations

import http.client
import threading
import urllib.parse

from .folder import Launch, read_launch
from .lean import render_json

MYPY = False
if MYPY:
    from typing import Any

PATH = "/v1/report/progress"
TIMEOUT_S = 5.0
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Reporter:
    """The newest progress wins; what the api did not take in time is replaced by what came after it."""

    def __init__(self, folder: str, launch: Launch) -> None:
        self._launch_path = folder + "/launch.json"
        self._launch = launch
        self._target = launch.report or {}
        self._changed = threading.Condition()
        self._newest: dict[str, Any] | None = None
        self._failures = 0
        self._finishing = False
        self._idle = True
        threading.Thread(target=self._work, daemon=True).start()

    def offer(self, progress: dict[str, Any]) -> None:
        with self._changed:
            self._newest = progress
            self._idle = False
            self._changed.notify_all()

    def finish(self, timeout_s: float) -> bool:
        """Send what is not sent yet, at once; whether it arrived within `timeout_s`."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._idle, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None)
                progress, self._newest = self._newest, None
            assert progress is not None
            sent = self._post(progress)
            with self._changed:
                if sent:
                    self._failures = 0
                    self._idle = self._newest is None
                    self._changed.notify_all()
                    continue
                self._newest = self._newest or progress
                pause_s = 0.2 if self._finishing else BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
                self._failures += 1
                self._changed.wait(pause_s)  # or until something new comes: the api may be back
            self._look_again()

    def _post(self, progress: dict[str, Any]) -> bool:
        launch = self._launch
        body = {
            "podUid": launch.pod_uid,
            "jobUid": launch.job_uid,
            "project": launch.project,
            "jobName": launch.job_name,
            "attempt": launch.attempt,
            "worker": launch.worker,
            "progress": progress,
        }
        try:
            url = urllib.parse.urlsplit(self._target["url"])
            make = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
            connection = make(url.netloc, timeout=TIMEOUT_S)
            try:
                connection.request(
                    "POST",
                    url.path.rstrip("/") + PATH,
                    render_json(body).encode(),
                    {"Authorization": "Bearer " + self._target["token"], "Content-Type": "application/json"},
                )
                status = connection.getresponse().status
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False
        # What the api refuses as wrong it will refuse again: that progress is done with. 401: perhaps an old token.
        return status < 500 and status not in (401, 408, 429)

    def _look_again(self) -> None:
        """The api may have moved (a new port after a restart): the node agent then rewrites launch.json."""
        try:
            self._target = read_launch(self._launch_path).report or self._target
        except (OSError, ValueError, KeyError, TypeError):
            return
