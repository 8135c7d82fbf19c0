"""A container's log by `pods/log`, as bytes while they come. Never by `nodes/proxy`.

Owns the request. The kubelet keeps what it keeps: a rotated or deleted container's log is gone from here. Picked by
`stoker_api.main`, for workers whose supervisor ships no log.

Source: Kubernetes core/v1 PodLogOptions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from urllib.parse import quote

from stoker.spec.meta import Key
from stoker.spec.pod import CONTAINER
from stoker.store.port import Invalid, Unavailable

from .client import Call, KubeClient

_QUIET_S = 3600.0  # a worker may say nothing for long


class PodLogs:
    """Reads logs; needs `get` on pods/log."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def read(
        self,
        key: Key,
        *,
        container: str = CONTAINER,
        since: datetime | None = None,
        tail_lines: int | None = None,
        follow: bool = False,
        timestamps: bool = False,
        previous: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """The log in pieces as they come; with `follow` until the container ends. Close it (`aclose`) to stop early.

        `since`: from this moment on, in whole seconds. `timestamps`: each line begins with its RFC 3339 time.
        Raises: NotFound (no such pod), Unavailable (also: its container has not been started), Forbidden.
        """
        query = {"container": container}
        if since is not None:
            query["sinceTime"] = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        flags = {"follow": follow, "timestamps": timestamps, "previous": previous}
        query |= {name: "true" for name, wanted in flags.items() if wanted}
        path = f"/api/v1/namespaces/{quote(key.namespace, safe='')}/pods/{quote(key.name, safe='')}/log"
        try:
            stream = await self._client.stream(Call("log", "Pod", str(key)), path, query, silence_s=_QUIET_S)
        except Invalid as error:  # "container … is waiting to start": it will be there
            raise Unavailable(str(error)) from error
        with stream:
            while piece := await stream.read():
                yield piece
