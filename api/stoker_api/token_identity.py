"""Identity on one machine: the token file for people, the report key's HMAC for workers and the exporter.

Owns what each role may do. Never asks another process: both look-ups are a hash. Picked by `stoker up`.
"""

from __future__ import annotations

from stoker.spec.report_tokens import node_of, pod_uid_of
from stoker_api.tokens import Role

from .identity import (
    EVERYWHERE,
    GET_JOB,
    GET_METRICS,
    LIST_JOBS,
    LIST_NODES,
    LIST_QUEUES,
    LIST_RUNTIMES,
    PROJECT_RESOURCES,
    Principal,
    Right,
)
from .tokens import ALL_PROJECTS, TokenFile, TokenHolder

_READER = {GET_JOB, LIST_JOBS, LIST_QUEUES, LIST_RUNTIMES, LIST_NODES, GET_METRICS}


class TokenIdentity:
    """Implements `identity.Identity`."""

    hint = (
        "`stoker up` prints where the administrator's stands, `stoker token` makes others and lists the expired; "
        "a worker's opens only /v1/report."
    )

    def __init__(self, tokens: TokenFile, report_key: bytes) -> None:
        self._tokens, self._report_key = tokens, report_key

    async def authenticate(self, token: str) -> Principal | None:
        return self._tokens.find(token)

    async def may(self, principal: Principal, right: Right, project: str = EVERYWHERE) -> bool:
        if not isinstance(principal, TokenHolder) or principal.role.rank < _role(right).rank:
            return False
        if right.resource not in PROJECT_RESOURCES and right.verb != "use" and right != GET_METRICS:
            return True  # names and sizes of what all share; metrics hold every project's jobs and users
        return ALL_PROJECTS in principal.projects or project in principal.projects

    def own_projects(self, principal: Principal) -> frozenset[str]:
        return principal.projects - {ALL_PROJECTS} if isinstance(principal, TokenHolder) else frozenset()

    async def worker(self, token: str) -> str | None:
        return pod_uid_of(self._report_key, token)

    async def exporter(self, token: str) -> str | None:
        return node_of(self._report_key, token)


def _role(right: Right) -> Role:
    if right in _READER:
        return Role.READER
    return Role.USER if right.resource in PROJECT_RESOURCES or right.verb == "use" else Role.ADMIN
