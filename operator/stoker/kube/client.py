"""Raw HTTP to the Kubernetes API server: bytes in, bytes or a typed error of the store port out.

Owns time-outs, retries, the limit's lanes, the fence and the fault seam: every request of this process goes through
`request` or `stream` here. Never decodes an object. Called by the store, the lease, reviews and pod logs.

    async with KubeClient.from_config(kubeconfig=None, context=None, clock=SystemClock(), seam=seam) as client:
        body = await client.request(Call("get", "Pod", "team-a/x"), "GET", "/api/v1/namespaces/team-a/pods/x")
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from stoker.store.clock import Clock
from stoker.store.port import Forbidden, StoreError, Unavailable
from stoker.store.seam import Seam

from .auth import ApiServer
from .errors import Throttled, parse_status, retry_after_s, to_error, without_frames
from .fence import Fence, Fenced
from .limit import AdaptiveLimit, RequestLane
from .stream import ByteStream

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_TRIES = 4
_THROTTLED_TRIES = 8
_BACKOFF_S = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class Call:
    """What a request is for: names it at the seam, in errors and in the trace."""

    verb: str
    kind: str
    about: str = ""
    lane: RequestLane = RequestLane.READ
    timeout_s: float = 15.0
    """For each try, from the first byte to the last."""
    tries: int = _TRIES
    """Only what may be done twice is tried more than once; a 429, which did nothing, always is."""

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.about}".rstrip()


class Meter(Protocol):
    """Who hears how requests went."""

    def took(self, verb: str, kind: str, seconds: float) -> None:
        """One try, from its first byte to its last, whatever came of it."""
        ...

    def again(self, verb: str, kind: str, why: str) -> None:
        """It is to be tried once more: throttled, lost, rejected."""
        ...


class KubeClient:
    """`async with KubeClient.from_config(…) as client`: connections are opened as they are needed, closed at the end.

    Cost: 0.4 ms of CPU per small request over TLS, most of it the kernel's and aiohttp's (tools/bench/kube.py).
    """

    def __init__(
        self,
        endpoint: ApiServer,
        clock: Clock,
        *,
        seam: Seam | None = None,
        limit: AdaptiveLimit | None = None,
        rng: random.Random | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter
        self._endpoint, self._clock, self._seam = endpoint, clock, seam or Seam()
        self._rng = rng or random.Random()
        self._streams: weakref.WeakSet[ByteStream] = weakref.WeakSet()
        self.limit = limit or AdaptiveLimit(clock)
        """Shared by all requests of this client; for metrics."""

    @classmethod
    def from_config(
        cls,
        *,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        clock: Clock,
        seam: Seam | None = None,
        limit: AdaptiveLimit | None = None,
        meter: Meter | None = None,
        anonymous: bool = False,
    ) -> KubeClient:
        """`kubeconfig` None: `$KUBECONFIG`, else the pod's service account, else `~/.kube/config`.

        `anonymous`: of that only where the server is; each request brings its caller's token.
        """
        path = None if kubeconfig is None else str(kubeconfig)
        return cls(ApiServer(clock, path, context, anonymous=anonymous), clock, seam=seam, limit=limit, meter=meter)

    async def __aenter__(self) -> Self:
        """Raises: Unavailable when there is no usable configuration. Does not ask the server anything."""
        await self._endpoint.open()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for stream in tuple(self._streams):
            stream.close()
        await self._endpoint.close()
        await asyncio.sleep(0)  # the loop's turn in which closed transports let go of their sockets

    @property
    def clock(self) -> Clock:
        return self._clock

    async def request(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        fence: Fence | None = None,
        accept: str = JSON,
        token: str = "",
    ) -> bytes:
        """The body of a good answer. `token`: whose request it is, where it is not ours.

        Raises: what `errors.to_error` makes of others; NotLeader (`fence`).
        """
        headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
        tries = throttled = 0
        renewed = False
        while True:
            try:
                return await self._once(call, method, path, query, body, content_type, fence, headers)
            except Throttled as error:
                throttled += 1
                if throttled >= _THROTTLED_TRIES:
                    raise
                self._count_repeat(call, "throttled")
                await self._clock.sleep(error.retry_after_s * self._rng.uniform(1.0, 1.5))
            except _Rejected as error:
                if renewed or not await self._endpoint.renew():
                    raise error.forbidden from None
                self._count_repeat(call, "rejected")
                renewed = True
            except _Lost as error:
                tries += 1
                if tries >= call.tries:
                    raise Unavailable(str(error)) from error
                self._count_repeat(call, "lost")
                await self._clock.sleep(max(error.wait_s, self.backoff_s(tries)))

    def _count_repeat(self, call: Call, why: str) -> None:
        if self._meter is not None:
            self._meter.again(call.verb, call.kind, why)

    def backoff_s(self, failures: int) -> float:
        """Units: seconds; grows with each failure, never the same for two clients."""
        first_s, longest_s = _BACKOFF_S
        return min(longest_s, first_s * 2.0 ** min(failures - 1, 30)) * self._rng.uniform(0.5, 1.0)

    async def stream(self, call: Call, path: str, query: Mapping[str, str], *, silence_s: float) -> ByteStream:
        """An answer to read as it comes; only its opening holds a place in the limit. One try.

        Raises: as `request`; the stream's `read` then Unavailable, also after `silence_s` without a byte.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=call.timeout_s, sock_read=silence_s)
        slot = await self.limit.enter(call.lane)
        refused, wait_s = False, 0.0
        try:
            with self._faults(call), self._seam.crossing(f"kube.{call.verb} {call.kind}", call.about):
                async with asyncio.timeout(call.timeout_s):
                    response = await self._send("GET", path, query, {"Accept": JSON}, timeout=timeout)
                    if response.status >= 400:
                        raise await self._refusal(call, response)
                stream = ByteStream(response, str(call), silence_s)
            self._streams.add(stream)
            return stream
        except Throttled as error:
            refused, wait_s = True, error.retry_after_s
            raise
        except _Rejected as error:
            await self._endpoint.renew()
            raise error.forbidden from None
        finally:
            self.limit.leave(slot, refused=refused, retry_after_s=wait_s)

    async def _once(
        self,
        call: Call,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        fence: Fence | None,
        headers: Mapping[str, str],
    ) -> bytes:
        slot = await self.limit.enter(call.lane)
        refused, wait_s, began = False, 0.0, self._clock.monotonic()
        try:
            with self._faults(call, lost=True), self._seam.crossing(f"kube.{call.verb} {call.kind}", call.about):
                payload = None if body is None else Fenced(body, content_type, fence)
                try:
                    async with asyncio.timeout(call.timeout_s):
                        response = await self._send(method, path, query, headers, data=payload)
                        if response.status >= 400:
                            raise await self._refusal(call, response)
                        return await response.read()
                except BaseException:
                    if payload is not None and payload.refusal is not None:
                        raise payload.refusal from None
                    raise
        except Throttled as error:
            refused, wait_s = True, error.retry_after_s
            raise
        except _Lost as error:
            refused = error.timed_out
            raise
        finally:
            self.limit.leave(slot, refused=refused, retry_after_s=wait_s)
            if self._meter is not None:
                self._meter.took(call.verb, call.kind, self._clock.monotonic() - began)

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, headers: Mapping[str, str], **how: Any
    ) -> aiohttp.ClientResponse:
        if self._endpoint.session is None:
            raise Unavailable("the client is closed")
        url = f"{self._endpoint.url}{path}"
        if query:
            url += "?" + urlencode(query)
        if self._endpoint.server_hostname:
            how["server_hostname"] = self._endpoint.server_hostname
        return await self._endpoint.session.request(
            method,
            URL(url, encoded=True),
            headers={**await self._endpoint.headers(), **headers},
            proxy=self._endpoint.proxy,
            allow_redirects=False,
            **how,
        )

    async def _refusal(self, call: Call, response: aiohttp.ClientResponse) -> Exception:
        """What a bad answer means. Not raised here: a frame that holds what it raises is a ring (`without_frames`)."""
        status = parse_status(await response.read(), response.status)
        error = to_error(status, str(call), wait_s=retry_after_s(response.headers))
        if response.status == 401 and isinstance(error, Forbidden):
            return _Rejected(error)
        if response.status >= 500 and type(error) is Unavailable:
            return _Lost(str(error), timed_out=response.status == 504, wait_s=retry_after_s(response.headers))
        return error

    @contextlib.contextmanager
    def _faults(self, call: Call, *, lost: bool = False) -> Iterator[None]:
        """Connection faults, time-outs and the seam's as what they mean to the caller."""
        try:
            yield
        except StoreError:
            raise
        except aiohttp.ServerTimeoutError as error:
            text = f"{call}: {error or 'the connection is silent'}"
            raise (_Lost(text, timed_out=True) if lost else Unavailable(text)) from without_frames(error)
        except TimeoutError as error:
            text = f"{call}: no answer within {call.timeout_s:g} s"
            raise (_Lost(text, timed_out=True) if lost else Unavailable(text)) from without_frames(error)
        except _Lost as error:
            if lost:
                raise
            raise Unavailable(str(error)) from without_frames(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = f"{call}: {error or type(error).__name__}"
            raise (_Lost(text) if lost else Unavailable(text)) from without_frames(error)


class _Lost(Exception):
    """It may or may not have been done: no answer, half an answer, or a server error."""

    def __init__(self, text: str, *, timed_out: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.timed_out, self.wait_s = timed_out, wait_s


class _Rejected(Exception):
    """HTTP 401."""

    def __init__(self, forbidden: Forbidden) -> None:
        super().__init__(str(forbidden))
        self.forbidden = forbidden
