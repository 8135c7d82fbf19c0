"""Who a caller is and what it may do: the protocol that the api asks, and the rights that it asks for.

Rights are Kubernetes' own (a verb on a resource of our group, in a project) in both modes. Two implementations:
`token_identity.py` (the token file, one machine) and `cluster_identity.py` (TokenReview and SubjectAccessReview). Asked
by `access.py` for every request, by `jobs/checks.py` for the queue a job names, and by lists over all projects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

EVERYWHERE = ""
"""As a project: all of them (what SubjectAccessReview means by an empty namespace)."""


class Right(NamedTuple):
    """A verb on a resource of the group stoker.dev; or, with an empty resource, on a path of the server (`name`)."""

    verb: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


GET_JOB = Right("get", "trainingjobs")
LIST_JOBS = Right("list", "trainingjobs")
CREATE_JOB = Right("create", "trainingjobs")
UPDATE_JOB = Right("update", "trainingjobs")
DELETE_JOB = Right("delete", "trainingjobs")
EXEC_JOB = Right("create", "trainingjobs/exec")
GET_FILES = Right("get", "trainingjobs/files")
FORWARD_JOB = Right("create", "trainingjobs/portforward")
LIST_SECRETS = Right("list", "projectsecrets")
UPDATE_SECRET = Right("update", "projectsecrets")
DELETE_SECRET = Right("delete", "projectsecrets")
LIST_QUEUES = Right("list", "queues")
CREATE_QUEUE = Right("create", "queues")
UPDATE_QUEUE = Right("update", "queues")
DELETE_QUEUE = Right("delete", "queues")
LIST_RUNTIMES = Right("list", "trainingruntimes")
CREATE_RUNTIME = Right("create", "trainingruntimes")
UPDATE_RUNTIME = Right("update", "trainingruntimes")
DELETE_RUNTIME = Right("delete", "trainingruntimes")
# Not `nodes`: who sees how full the GPUs are need not see every node's addresses and labels.
LIST_NODES = Right("list", "gpunodes")
UPDATE_NODE = Right("update", "gpunodes")
GET_METRICS = Right("get", "", "/metrics")

PROJECT_RIGHTS = (GET_JOB, LIST_JOBS, CREATE_JOB, UPDATE_JOB, DELETE_JOB, EXEC_JOB, FORWARD_JOB, GET_FILES)
SHARED_RIGHTS = (
    *(LIST_QUEUES, CREATE_QUEUE, UPDATE_QUEUE, DELETE_QUEUE),
    *(LIST_RUNTIMES, CREATE_RUNTIME, UPDATE_RUNTIME, DELETE_RUNTIME),
    *(LIST_NODES, UPDATE_NODE, GET_METRICS),
)
PROJECT_RESOURCES = frozenset(
    {"trainingjobs", "trainingjobs/exec", "trainingjobs/portforward", "trainingjobs/files", "projectsecrets"}
)


def use_queue(name: str) -> Right:
    """To spend a queue's quota. Asked with the job's project, so that a RoleBinding there can give it."""
    return Right("use", "queues", name)


def use_runtime(name: str) -> Right:
    """To run workers as a TrainingRuntime has them. Asked with the job's project."""
    return Right("use", "trainingruntimes", name)


def use_secret(name: str) -> Right:
    """To give a job a secret of its project. Asked with the job's project."""
    return Right("use", "projectsecrets", name)


@dataclass(frozen=True)
class Principal:
    """Who asks. `name` is what jobs are stamped with."""

    name: str


class IdentityUnavailable(Exception):
    """The authority can't be reached now: neither yes nor no."""


class Identity(Protocol):
    """Raises everywhere: IdentityUnavailable."""

    @property
    def hint(self) -> str:
        """Where tokens come from, for a caller that sent none that is known."""
        ...

    async def authenticate(self, token: str) -> Principal | None:
        """Whose token it is; None: unknown here."""
        ...

    async def may(self, principal: Principal, right: Right, project: str = EVERYWHERE) -> bool: ...

    def own_projects(self, principal: Principal) -> frozenset[str]:
        """Projects worth asking about for this caller, whether or not they hold jobs."""
        ...

    async def worker(self, token: str) -> str | None:
        """The uid of the pod whose own token it is; None: no worker's."""
        ...

    async def exporter(self, token: str) -> str | None:
        """The node whose exporter this token belongs to; None: no exporter's."""
        ...


async def seen_by(identity: Identity, principal: Principal, projects: Iterable[str]) -> Callable[[str], bool]:
    """In which projects the caller may list jobs: all at one question, else those of `projects` asked one by one.

    Raises: IdentityUnavailable.
    """
    if await identity.may(principal, LIST_JOBS):
        return lambda _: True
    asked = sorted(set(projects))
    answers = await asyncio.gather(*(identity.may(principal, LIST_JOBS, project) for project in asked))
    seen = {project for project, yes in zip(asked, answers, strict=True) if yes}
    return seen.__contains__
