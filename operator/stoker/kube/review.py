"""Asks the cluster for a token's user and a user's permissions: TokenReview and SubjectAccessReview.

Owns the two requests. Keeps no answer (the api decides how long one holds) and no token. Called by
`stoker_api.cluster_identity` through its own protocol; picked by `stoker_api.main`.

Source: Kubernetes authentication.k8s.io/v1 and authorization.k8s.io/v1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stoker.spec.meta import StatusModel

from .client import Call, KubeClient
from .limit import RequestLane

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class User(Protocol):
    """All that the cluster's permissions are decided by."""

    @property
    def username(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def groups(self) -> Sequence[str]: ...
    @property
    def extra(self) -> Mapping[str, Sequence[str]]: ...


class Reviewed(StatusModel):
    """The user of a token."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class _TokenStatus(StatusModel):
    authenticated: bool = False
    audiences: tuple[str, ...] = ()
    user: Reviewed = Reviewed()


class _TokenReview(StatusModel):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(StatusModel):
    allowed: bool = False
    denied: bool = False


class _AccessReview(StatusModel):
    status: _AccessStatus = _AccessStatus()


class TokenReviewer:
    """Needs `create` on tokenreviews and subjectaccessreviews (ClusterRole system:auth-delegator)."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str, audiences: Sequence[str] = ()) -> Reviewed | None:
        """Who it is; None: not authenticated, or not for one of `audiences` ((): the API server's own).

        Raises: Unavailable, Forbidden.
        """
        spec: dict[str, Any] = {"token": token}
        if audiences:
            spec["audiences"] = list(audiences)
        raw = await self._ask("TokenReview", "authentication.k8s.io/v1", _TOKENS, spec)
        status = _TokenReview.model_validate_json(raw).status
        if not status.authenticated or (audiences and not set(audiences) & set(status.audiences)):
            return None  # an authenticator that knows no audiences answers without them: it has not checked ours
        return status.user

    async def allowed(
        self, user: User, *, verb: str, group: str, resource: str, namespace: str = "", name: str = ""
    ) -> bool:
        """Whether they may `verb` the resource (`jobs/exec`: its subresource); namespace "": in all.

        Raises: Unavailable, Forbidden.
        """
        resource, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
        if subresource:
            attributes["subresource"] = subresource
        return await self._may(user, {"resourceAttributes": attributes})

    async def allowed_path(self, user: User, *, verb: str, path: str) -> bool:
        """Whether they may `verb` a path that is no resource. Raises: Unavailable, Forbidden."""
        return await self._may(user, {"nonResourceAttributes": {"verb": verb, "path": path}})

    async def _may(self, user: User, attributes: dict[str, Any]) -> bool:
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra.items()},
            **attributes,
        }
        raw = await self._ask("SubjectAccessReview", "authorization.k8s.io/v1", _ACCESS, spec)
        status = _AccessReview.model_validate_json(raw).status
        return status.allowed and not status.denied

    async def _ask(self, kind: str, api_version: str, path: str, spec: dict[str, Any]) -> bytes:
        # Nothing is stored, so asking again is harmless.
        call = Call("create", kind, lane=RequestLane.READ, timeout_s=5.0, tries=3)
        body = json.dumps({"apiVersion": api_version, "kind": kind, "spec": spec}).encode()
        return await self._client.request(call, "POST", path, body=body)
