"""The fence: a write leaves this process only while it may.

Owns the last look before a write's bytes are handed to the socket: a body that asks the fence as it is written. A
process that was frozen between deciding and sending is stopped here, without a byte of the body sent. Never knows
who leads: `lease.LeaderElection.check` is such a fence. Called by `client`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp.payload import BytesPayload

from stoker.store.port import NotLeader

Fence = Callable[[], None]
"""Raises NotLeader when writing is not allowed (any more)."""


class Fenced(BytesPayload):
    """A request's body behind a fence; `refusal` is what the fence said when it did not let it pass."""

    def __init__(self, body: bytes, content_type: str, fence: Fence | None) -> None:
        super().__init__(body, content_type=content_type)
        self._fence = fence
        self.refusal: NotLeader | None = None

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        if self._fence is not None:
            try:
                self._fence()
            except NotLeader as error:
                self.refusal = error
                raise
        await super().write_with_length(writer, content_length)
