"""The way to what a job names by a right (a Queue, a TrainingRuntime): who may go through, and the words for others.

Whether one exists is told only to those who may list them: to others "not there" and "not yours" are one answer. The
admission policies (helm/stoker/templates/admission) say the same to kubectl. Never stores. Called by `checks.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from stoker.spec.meta import Key, Kind
from stoker.spec.names import DEFAULT_QUEUE
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.runtime import DEFAULT_RUNTIME, RUNTIMES, TrainingRuntime
from stoker.store.cache import WatchCache
from stoker.store.port import NotFound, Store
from stoker_api.identity import LIST_QUEUES, LIST_RUNTIMES, Identity, Principal, Right, use_queue, use_runtime
from stoker_api.problems import Code, Fault, Problem, invalid

T = TypeVar("T", bound=Queue | TrainingRuntime)


@dataclass(frozen=True)
class Words(Generic[T]):
    """What differs between the two."""

    kind: Kind[T]
    what: str
    verb: str
    use: Callable[[str], Right]
    lists: Right
    forbidden: Code
    unknown: Code
    everybodys: str = ""
    """Needs no right."""
    promised: str = ""
    """Will be there soon."""


QUEUE = Words(
    QUEUES,
    "queue",
    "spend",
    use_queue,
    LIST_QUEUES,
    Code.QUEUE_FORBIDDEN,
    Code.UNKNOWN_QUEUE,
    promised=DEFAULT_QUEUE,
)
RUNTIME = Words(
    RUNTIMES,
    "runtime",
    "run workers in",
    use_runtime,
    LIST_RUNTIMES,
    Code.RUNTIME_FORBIDDEN,
    Code.UNKNOWN_RUNTIME,
    everybodys=DEFAULT_RUNTIME,
)


class Door(Generic[T]):
    def __init__(self, words: Words[T], store: Store, cache: WatchCache[T], identity: Identity) -> None:
        self._words, self._store, self._cache, self._identity = words, store, cache, identity

    async def open(self, principal: Principal, name: str, project: str) -> T:
        """What the job names: it is there, the caller's to use, and open to the project. Raises: Problem."""
        words = self._words
        needs_right = name != words.everybodys
        if needs_right and not await self._identity.may(principal, words.use(name), project):
            raise self._none(principal, name, project)
        found = self._cache.get(Key("", name))
        if found is None:
            with contextlib.suppress(NotFound):
                found = await self._store.get(words.kind, Key("", name))
        if found is not None and takes(found, project):
            return found
        if found is None and name == words.promised:
            said = f"The operator has not created {words.what} {name!r} yet; try again."
            raise Problem(Code.UNAVAILABLE, said, retry_after_s=1)
        if needs_right and not await self._identity.may(principal, words.lists):
            raise self._none(principal, name, project)
        raise self._absent(name, project) if found is None else self._closed(name, project)

    def _none(self, principal: Principal, name: str, project: str) -> Problem:
        """The same for what is not there and what is not the caller's."""
        what, right = self._words.what, self._words.use(name)
        return Problem(
            self._words.forbidden,
            f"There is no {what} {name!r} that {principal.name!r} may {self._words.verb} in project {project!r}; "
            f"choose another {what} or ask for the right to use it.",
            errors=[Fault(f"/spec/{what}", f"needs the right to {right}")],
        )

    def _absent(self, name: str, project: str) -> Problem:
        what = self._words.what
        names = sorted(one.metadata.name for one in self._cache.values() if takes(one, project))
        said = f"there is no {what} {name!r}; there is: {', '.join(names) or 'none yet'}"
        return invalid(f"/spec/{what}", said, code=self._words.unknown)

    def _closed(self, name: str, project: str) -> Problem:
        what = self._words.what
        return Problem(
            self._words.forbidden,
            f"{what.capitalize()} {name!r} does not take jobs of project {project!r}; choose another {what} or ask its "
            "administrator.",
            errors=[Fault(f"/spec/{what}", f"is closed to project {project!r}")],
        )


def takes(one: Queue | TrainingRuntime, project: str) -> bool:
    return one.spec.projects is None or project in one.spec.projects
