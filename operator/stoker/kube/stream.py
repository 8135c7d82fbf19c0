"""An answer that is read as it comes: a watch's lines, a pod's log.

Owns one open response and what its faults mean. Made by `client.KubeClient.stream`; read by `watch` and `pod_logs`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import aiohttp

from stoker.store.port import Unavailable

from .errors import without_frames


class ByteStream:
    """May simply be dropped: then the connection is closed with it."""

    def __init__(self, response: aiohttp.ClientResponse, what: str, silence_s: float) -> None:
        self._response, self._what, self._silence_s = response, what, silence_s

    async def read(self) -> bytes:
        """What has come; empty at the end. Others get a turn even where it never has to wait.

        Raises: Unavailable for a broken connection, and for one that was silent too long.
        """
        await asyncio.sleep(0)
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            self.close()
            text = f"{self._what}: not a byte in {self._silence_s:g} s, the connection is dead"
            raise Unavailable(text) from without_frames(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.close()
            raise Unavailable(f"{self._what}: {error or type(error).__name__}") from without_frames(error)

    def close(self) -> None:
        """At once: a TLS farewell to a server that is still talking would wait for it."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
