"""How the node's GPUs are, on its way to the api: only the newest counts, nothing is kept on disk. Not thread-safe.

It goes when it has changed, and again every minute: what the api lost comes back, and it knows that the exporter runs.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from .delivery import NotNow, Posts

GPUS_PATH = "/v1/report/gpus"
AGAIN_S = 60.0
"""`stoker_api.gpu_health.SILENT_S` is three of them."""
REFUSED_S = 60.0
"""What was refused is tried again then: by an api that is older than we are."""
_BUSY = (409, 429)

log = logging.getLogger(__name__)


class GpusPost:
    def __init__(self, posts: Posts, head: str) -> None:
        """`head`: the fields of the body before the GPUs, as JSON."""
        self._posts, self._head = posts, head
        self._text = self._sent = ""
        self._again_s = self._closed_until_s = float("-inf")

    def offer(self, gpus: Sequence[dict[str, Any]]) -> bool:
        """Whether it is news. Of no GPU anything being known says nothing."""
        text = json.dumps(gpus, separators=(",", ":"), allow_nan=False) if gpus else self._text
        is_news, self._text = text != self._text, text
        return is_news

    def send(self) -> None:
        """If it is time. Raises: NotNow, NoResponse."""
        now_s, text = time.monotonic(), self._text
        if not text or now_s < self._closed_until_s or (text == self._sent and now_s < self._again_s):
            return
        response = self._posts.post(GPUS_PATH, f'{{{self._head},"gpus":{text}}}'.encode())
        self._again_s = now_s + AGAIN_S
        if response.status == 200:
            self._sent = text
        elif response.status in _BUSY or response.status >= 500:
            raise NotNow(f"{response.status} to how the GPUs are", response.retry_after_s)
        else:
            if self._closed_until_s < now_s - 2 * REFUSED_S:
                log.warning("the api does not take how the GPUs are (%d); it is posted again", response.status)
            self._closed_until_s = now_s + REFUSED_S
