"""Who may read the operator's metrics, which name every project's jobs and users: who may `get` the path /metrics.

Owns how long the cluster's answer is kept. Keeps no token: answers are kept under its hash. Called by `probes`.
"""

from __future__ import annotations

import asyncio
import hashlib
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from stoker.store.clock import Clock
from stoker.store.port import StoreError
from stoker.store.ttl_cache import TTLCache

U = TypeVar("U")

PATH = "/metrics"
ALLOWED_S, REFUSED_S = 60.0, 5.0
"""A right that is taken away counts this much longer; one that is given, this much later."""
ASK_S = 4.0
AT_ONCE = 2
"""Questions to the cluster: unknown tokens must not take the operator's own turns."""
_LONGEST_TOKEN = 16 * 1024


class ScrapeReviews(Protocol[U]):
    """Implemented by `stoker.kube.review.TokenReviewer`; what a user is, is its own. Raises everywhere: StoreError."""

    async def review(self, token: str) -> U | None: ...

    async def allowed_path(self, user: U, *, verb: str, path: str) -> bool: ...


class ScrapeAuth:
    def __init__(self, reviews: ScrapeReviews[Any], clock: Clock) -> None:
        self._reviews = reviews
        self._answers: TTLCache[bytes, HTTPStatus] = TTLCache(clock, _kept_s, most=1000, at_once=AT_ONCE)

    async def answer(self, authorization: str) -> HTTPStatus:
        """OK, or the status by which the sender of this header is refused; 503 while the cluster can't be asked."""
        kind, _, token = authorization.partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token.isascii() or not token.isprintable() or len(token) > _LONGEST_TOKEN:
            return HTTPStatus.UNAUTHORIZED
        try:
            async with asyncio.timeout(ASK_S):
                return await self._answers.get(hashlib.sha256(token.encode()).digest(), lambda: self._ask(token))
        except (StoreError, TimeoutError):
            return HTTPStatus.SERVICE_UNAVAILABLE

    async def _ask(self, token: str) -> HTTPStatus:
        user = await self._reviews.review(token) if token else None
        if user is None:
            return HTTPStatus.UNAUTHORIZED
        may = await self._reviews.allowed_path(user, verb="get", path=PATH)
        return HTTPStatus.OK if may else HTTPStatus.FORBIDDEN


def _kept_s(answer: HTTPStatus) -> float:
    return ALLOWED_S if answer is HTTPStatus.OK else REFUSED_S
