"""Identity on Kubernetes: the cluster's own tokens (TokenReview) and permissions (SubjectAccessReview).

Owns how long an answer is kept, which pod a worker's token belongs to and which node an exporter's. Keeps no user and
no token: answers are kept under the token's hash. What can't be asked is neither yes nor no (`IdentityUnavailable`,
503). Picked by `main.py`, which brings the reviews.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stoker.spec.names import GROUP
from stoker.store.clock import Clock
from stoker.store.port import StoreError
from stoker.store.ttl_cache import TTLCache

from .identity import EVERYWHERE, IdentityUnavailable, Principal, Right

log = logging.getLogger(__name__)

WORKER_AUDIENCE = "stoker"
POD_UID = "authentication.kubernetes.io/pod-uid"
NODE_NAME = "authentication.kubernetes.io/node-name"

# A revoked token or permission is honoured this much longer, a new one refused this much longer.
REVIEWED_S, UNKNOWN_S = 60.0, 5.0
ALLOWED_S, DENIED_S = 30.0, 5.0
_LONGEST_TOKEN = 16 * 1024
_SERVICE_ACCOUNT = "system:serviceaccount:"

T = TypeVar("T")


class ReviewedAccount(Protocol):
    """The account that TokenReview found behind a token."""

    @property
    def username(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def groups(self) -> Sequence[str]: ...
    @property
    def extra(self) -> Mapping[str, Sequence[str]]: ...


class Reviews(Protocol):
    """Source: Kubernetes authentication.k8s.io/v1 TokenReview, authorization.k8s.io/v1 SubjectAccessReview."""

    async def review(self, token: str, audiences: Sequence[str] = ()) -> ReviewedAccount | None:
        """Who it is; None: not authenticated, or not for one of `audiences` ((): the API server's own)."""
        ...

    async def allowed(
        self, user: ReviewedAccount, *, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool: ...

    async def allowed_path(self, user: ReviewedAccount, *, verb: str, path: str) -> bool: ...


@dataclass(frozen=True)
class ClusterUser(Principal):
    reviewed: ReviewedAccount
    key: tuple[object, ...]
    """All that the cluster decides by."""


class ClusterIdentity:
    """Implements `identity.Identity`. `audiences`: what people's tokens must be made for; (): for the API server.

    `exporters`: the service accounts that exporters run as, each `<namespace>:<name>`.
    """

    hint = (
        "`kubectl create token <service account>` makes one, and your cluster's login tokens do; a worker's token "
        "opens only /v1/report."
    )

    def __init__(
        self, reviews: Reviews, clock: Clock, audiences: Sequence[str] = (), exporters: Collection[str] = ()
    ) -> None:
        self._reviews, self._audiences = reviews, tuple(audiences)
        self._exporters = frozenset(f"{_SERVICE_ACCOUNT}{account}" for account in exporters)
        self._users: TTLCache[bytes, ReviewedAccount | None] = TTLCache(clock, _reviewed_s)
        # Apart, so that a flood of unknown tokens keeps no worker from reporting.
        self._workers: TTLCache[bytes, ReviewedAccount | None] = TTLCache(clock, _reviewed_s)
        self._rights: TTLCache[tuple[object, ...], bool] = TTLCache(clock, _decided_s)

    async def authenticate(self, token: str) -> Principal | None:
        if not _plausible(token):
            return None
        found = await self._users.get(_digest(token), lambda: _asked(self._reviews.review(token, self._audiences)))
        return None if found is None else ClusterUser(found.username, found, _key(found))

    async def may(self, principal: Principal, right: Right, project: str = EVERYWHERE) -> bool:
        assert isinstance(principal, ClusterUser)
        user = principal.reviewed

        def ask() -> Awaitable[bool]:
            if not right.resource:
                return _asked(self._reviews.allowed_path(user, verb=right.verb, path=right.name))
            return _asked(
                self._reviews.allowed(
                    user, verb=right.verb, group=GROUP, resource=right.resource, namespace=project, name=right.name
                )
            )

        return await self._rights.get((principal.key, right, project), ask)

    def own_projects(self, principal: Principal) -> frozenset[str]:
        """A service account's own namespace."""
        if not principal.name.startswith(_SERVICE_ACCOUNT):
            return frozenset()
        return frozenset({principal.name.removeprefix(_SERVICE_ACCOUNT).partition(":")[0]})

    async def worker(self, token: str) -> str | None:
        found = await self._reporter(token)
        return None if found is None or found.username in self._exporters else _only(found, POD_UID)

    async def exporter(self, token: str) -> str | None:
        """The node that the token's pod is bound to, if the pod is an exporter's."""
        if not self._exporters:
            return None
        found = await self._reporter(token)
        return None if found is None or found.username not in self._exporters else _only(found, NODE_NAME)

    async def _reporter(self, token: str) -> ReviewedAccount | None:
        """Whose token for reports it is."""
        if not _plausible(token):
            return None
        return await self._workers.get(_digest(token), lambda: _asked(self._reviews.review(token, (WORKER_AUDIENCE,))))


def _only(found: ReviewedAccount, name: str) -> str | None:
    values = list(found.extra.get(name, ()))
    return values[0] if len(values) == 1 else None


async def _asked(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except StoreError as error:
        log.warning("the cluster can't be asked about a token or a permission: %s", error)
        raise IdentityUnavailable(str(error)) from error


def _plausible(token: str) -> bool:
    return token.isascii() and token.isprintable() and len(token) <= _LONGEST_TOKEN


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _key(user: ReviewedAccount) -> tuple[object, ...]:
    extra = tuple(sorted((name, tuple(values)) for name, values in user.extra.items()))
    return user.username, user.uid, tuple(user.groups), extra


def _reviewed_s(found: ReviewedAccount | None) -> float:
    return UNKNOWN_S if found is None else REVIEWED_S


def _decided_s(allowed: bool) -> float:
    return ALLOWED_S if allowed else DENIED_S
