"""The store port: what the operator, the api and the node agent may ask of a store, whichever it is.

Owns the protocol, the typed errors and the watch's events. Knows no adapter. Two adapters implement it (`stoker.local`
and `stoker.kube`); `tests/contract` runs one suite against each. The semantics are Kubernetes' own as far as we use
them (API concepts: resource versions, "efficient detection of changes", finalizers, garbage collection).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from stoker.spec.meta import Key, Kind, Resource

T = TypeVar("T", bound=Resource)


class StoreError(Exception):
    """Something the store refused or could not do; the subclasses say what."""


class NotFound(StoreError):
    """No such object (any more)."""


class AlreadyExists(StoreError):
    """An object of this name is there already."""


class Conflict(StoreError):
    """The object is not as it was read: its resourceVersion or uid differs. Read again and decide anew."""


class Invalid(StoreError):
    """The object breaks a rule of its kind. `errors` are sentences for people."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


class Gone(StoreError):
    """The watch's start is too old (HTTP 410): list again and take the difference."""


class Unavailable(StoreError):
    """The store can't answer now (closed, full disk, no connection): try again later."""


class CannotWrite(Unavailable):
    """The store's disk takes nothing now (full, read-only): the text says why, for people."""


class CannotRead(Unavailable):
    """The object is there in a form that this version of Stoker can't read: the text says why, for people."""


class Forbidden(Unavailable):
    """Refused by a rule (a quota, an admission policy): trying again helps only once an administrator has."""


class NotPermitted(Forbidden):
    """The store does not accept our own credentials, or they lack a permission.

    Also while it starts: an API server answers so until it has read its roles (0.2 s on the test bed).
    """


class NotLeader(Unavailable):
    """Not written: another process may lead by now. Stop, and let the leader do it."""


class WatchType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True)
class Unreadable:
    """An object that Stoker can't read; `errors` are sentences for people."""

    kind: str
    key: Key
    uid: str
    resource_version: str
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change. A BOOKMARK carries no object, only how far the watch has come."""

    type: WatchType
    resource_version: str
    object: T | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list: `items` by (namespace, name); `continue_token` leads to the rest, None: that was all.

    `resource_version` is the moment the whole list (all its pages) stands for: a watch from there misses nothing.
    """

    items: tuple[T, ...]
    resource_version: str
    continue_token: str | None = None


class Watching(Protocol[T]):
    """What `watch` returns: changes in order, without end. It holds nothing that must be closed."""

    def __aiter__(self) -> AsyncIterator[WatchEvent[T]]: ...

    async def __anext__(self) -> WatchEvent[T]: ...

    def silent_s(self) -> float:
        """Seconds since the store last said anything on this watch, bookmarks and its opening included.

        0 where silence means that nothing changed (a store in this process); infinite before its first word.
        """
        ...


class Store(Protocol):
    """Objects with optimistic concurrency.

    Invariant: `create` and `update` never touch status (a new object's status is the model's default), `patch_status`
    never touches anything else; `metadata.generation` grows by one with each change of spec; a write that changes
    nothing leaves resourceVersion alone and wakes no watch. Names and namespaces never change.
    """

    async def get(self, kind: Kind[T], key: Key) -> T:
        """Raises: NotFound, CannotRead."""
        ...

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        continue_token: str | None = None,
    ) -> Page[T]:
        """Objects whose labels hold all of `labels`. Raises: Gone (a continue token too old).

        By namespace and name; on Kubernetes as the bytes of `namespace/name` sort.
        """
        ...

    async def snapshot(self, kind: Kind[T]) -> Page[T]:
        """All objects of the kind, as of one moment, the way that costs the store least. Raises: Gone, Unavailable."""
        ...

    def watch(self, kind: Kind[T], *, since: str) -> Watching[T]:
        """Changes of all objects of the kind after resourceVersion `since`, in order, without end.

        Raises: Gone when `since` is too old or the reader was too slow; Unavailable.
        """
        ...

    async def create(self, kind: Kind[T], obj: T) -> T:
        """The object as stored, with uid, resourceVersion, generation 1 and creationTimestamp.

        Raises: AlreadyExists, Invalid.
        """
        ...

    async def update(self, kind: Kind[T], obj: T) -> T:
        """Replace metadata (labels, annotations, finalizers, ownerReferences) and spec.

        Of kinds that are not Stoker's own (Pod, …) on a cluster: metadata only, and labels and annotations are added
        or changed, never removed, since others write there too.

        With `obj.metadata.resource_version` set it must still be the stored one. An object under deletion that loses
        its last finalizer is removed. Raises: NotFound, Conflict, Invalid (`Kind.update_errors`).
        """
        ...

    async def patch_status(
        self,
        kind: Kind[T],
        key: Key,
        patch: Mapping[str, Any],
        *,
        manager: str,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> T:
        """Apply an RFC 7396 merge patch (API names, JSON values; None deletes) to the object's status.

        `manager` names the writer (operator, api, agent). Raises: NotFound, Conflict (uid or resourceVersion given and
        different), Invalid (the result is no valid status).
        """
        ...

    async def patch_unread(
        self,
        kind: Kind[Any],
        key: Key,
        patch: Mapping[str, Any],
        *,
        manager: str,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> str:
        """As `patch_status`, but of the object as stored only the new resourceVersion is read, and returned.

        That costs less, and can be done where the rest can't be read.
        """
        ...

    async def delete(self, kind: Kind[T], key: Key, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """Remove it; with finalizers, mark it (deletionTimestamp, deletionGracePeriodSeconds) and leave it to them.

        Objects whose controller owner is gone are removed too (background cascade, by the same rules). Deleting what
        is marked already changes nothing. Raises: NotFound, Conflict (another uid).
        """
        ...
