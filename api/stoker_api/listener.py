"""All connections of a server: how many there may be, and which goes when there are too many.

Owns the accept loop (a TLS handshake holds a descriptor before any protocol knows of it), the cap below the limit of
descriptors, and the time a peer has for a request's head. Full, it makes room: one that has been sending its head for a
while goes first, then one at rest whose last request had no token, then any without a request, then one at rest. At
rest is also who does not take its answer; else a request being answered is never cut off, and where all are, the new
one gets 503. So who has no token locks out no one who has one. Called by `serve.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stoker_api.pacing import Rounds, UnderWay

from .connection import Connection, refusal
from .metrics import ApiMetrics
from .problems import ProblemCode

log = logging.getLogger(__name__)

_YOUNG_S = 1.0
_ARRIVALS_AT_ONCE = 8
_ENDS_AT_ONCE = 4
_WARN_EVERY_S = 60.0
_TLS_SHUTDOWN_S = 2.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    head_s: float = 10.0
    """From a request's first byte (or the connection) to the end of its head; a TLS handshake has as long."""
    most: int | None = None
    """None: what the process's descriptors allow, at most 10,000."""


def raise_open_files() -> int:
    """Raise the soft limit of descriptors to the hard one. Returns how many of them connections may take.

    A quarter (at most 1,024) is left to everything else: the store, logs, and in `stoker up` the agent's workers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a hard limit that may not be reached
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return 10_000
    return max(8, min(10_000, soft - min(soft // 4, 1024)))


class _Peer(Protocol):
    def abort(self) -> None: ...
    def too_slow(self) -> None: ...


class _Handshake:
    """A TLS handshake under way."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()

    def too_slow(self) -> None:
        """It has its own limit."""


class Listener:
    """`held`: how many connections uvicorn holds, WebSockets too."""

    def __init__(
        self,
        most: int,
        head_s: float,
        tls: ssl.SSLContext | None,
        metrics: ApiMetrics,
        held: Callable[[], int],
        under_way: UnderWay,
    ) -> None:
        self.most, self._head_s, self._tls, self._metrics, self._held = most, head_s, tls, metrics, held
        self._opening: set[asyncio.Task[None]] = set()
        # Each in the order of time, the longest there first.
        self._waiting: dict[_Peer, float] = {}
        """No request yet, or the next one's head is coming: since when."""
        self._resting: dict[_Peer, None] = {}
        self._resting_known: dict[_Peer, None] = {}
        self.arrivals = Rounds(_ARRIVALS_AT_ONCE, under_way=under_way)
        """What new connections sent first: whose peers connected at once send at once."""
        self.ends = Rounds(_ENDS_AT_ONCE, rest_s=0.001, under_way=under_way)
        """Each wakes what was sent or waited for on the connection."""
        self._warned_at = -_WARN_EVERY_S
        self._unlogged = 0
        metrics.connections.set_function(lambda: self.count)

    @property
    def count(self) -> int:
        return self._held() + len(self._opening)

    # What connections report of themselves.

    def waits(self, peer: _Peer, since_s: float) -> None:
        if peer not in self._waiting:  # else it waits on: a byte now and then buys no time
            self._forget(peer)
            self._waiting[peer] = since_s

    def works(self, peer: _Peer) -> None:
        self._forget(peer)

    def rests(self, peer: _Peer, *, known: bool) -> None:
        self._forget(peer)
        (self._resting_known if known else self._resting)[peer] = None

    def gone(self, peer: _Peer) -> None:
        self._forget(peer)

    def refused(self, code: ProblemCode) -> None:
        self._metrics.refused.labels(str(code)).inc()

    def _forget(self, peer: _Peer) -> None:
        for peers in (self._waiting, self._resting, self._resting_known):
            peers.pop(peer, None)

    # Coming and going.

    async def run(self, listening: socket.socket, protocol: Callable[[float], Connection]) -> None:
        """Accept, one a turn of the loop, that others get theirs between; until cancelled.

        `protocol` makes one for a peer that came at that time.
        """
        loop = asyncio.get_running_loop()
        sweeping = asyncio.create_task(self._sweep())
        try:
            while True:
                try:
                    sock, _ = await loop.sock_accept(listening)
                except OSError as error:
                    if error.errno in _SHORTAGES:
                        self._make_room()
                        self._warn(f"can't accept connections: {error.strerror}")
                        await asyncio.sleep(0.1)
                    continue  # else the peer is gone again
                if self.count >= self.most and not self._make_room():
                    self._turn_away(sock)
                else:
                    task = asyncio.create_task(self._open(sock, protocol))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
                await asyncio.sleep(0)
        finally:
            sweeping.cancel()
            for task in list(self._opening):
                task.cancel()
            await asyncio.gather(sweeping, *self._opening, return_exceptions=True)

    async def _open(self, sock: socket.socket, protocol: Callable[[float], Connection]) -> None:
        loop = asyncio.get_running_loop()
        came_s = loop.time()
        if self._tls is None:
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(lambda: protocol(came_s), sock)
            return
        task = asyncio.current_task()
        assert task is not None
        handshake = _Handshake(task)
        self.waits(handshake, came_s)
        try:
            await loop.connect_accepted_socket(
                lambda: protocol(came_s),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._head_s,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
            )
        except OSError as error:  # the peer's: no TLS, too slow, a certificate it does not like
            log.debug("TLS handshake: %s", error)
        finally:
            self.gone(handshake)

    def _make_room(self) -> bool:
        """Close the connection that is missed least. False: all are at work."""
        young_s = asyncio.get_running_loop().time() - _YOUNG_S
        first, since_s = next(iter(self._waiting.items()), (None, 0.0))
        if first is None or since_s > young_s:
            first = next(iter(self._resting), first) or next(iter(self._resting_known), None)
        if first is None:
            return False
        self._forget(first)
        first.abort()
        self._metrics.refused.labels("Evicted").inc()
        self._warn(f"{self.count} connections are open, the most there may be (`ulimit -Hn` sets how many)")
        return True

    def _turn_away(self, sock: socket.socket) -> None:
        self.refused(ProblemCode.UNAVAILABLE)
        self._warn(f"{self.count} connections are open, the most there may be, and all are at work")
        with sock, contextlib.suppress(OSError):
            if self._tls is None:
                sock.send(refusal(ProblemCode.UNAVAILABLE, "The server has as many connections as it can; try again."))

    async def _sweep(self) -> None:
        """End what has been at its head for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self._head_s / 4))
            until_s = loop.time() - self._head_s
            for peer, since_s in list(self._waiting.items()):
                if since_s <= until_s:
                    del self._waiting[peer]
                    peer.too_slow()

    def _warn(self, what: str) -> None:
        """At most one line a minute, however many connections come."""
        self._unlogged += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned_at >= _WARN_EVERY_S:
            log.warning("%s; %d turned away or closed for new ones since the last such line", what, self._unlogged)
            self._warned_at, self._unlogged = now_s, 0
