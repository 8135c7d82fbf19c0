"""Garbage collection: objects go when every owner they name is gone (Kubernetes' background cascade).

Owns the owner references. It works from the state, not from the deletion: an object whose owner went before it came, or
while no process ran, goes too. Never touches an object with a living owner or an owner of a kind this store does not
keep. Fed and run by `store.EmbeddedStore`.

Source: Kubernetes "Garbage Collection" (owners are known by uid; an owner in another namespace counts as absent).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from stoker.spec.meta import Key, OwnerReference, Resource
from stoker.store.clock import Clock
from stoker.store.port import Conflict, NotFound, Unavailable
from stoker.store.workqueue import QueueShutDown, WorkQueue

logger = logging.getLogger(__name__)

WORKERS = 16
"""Deletions under way at a time; they share commits."""


class Ref(NamedTuple):
    """Where an object is, and which one."""

    kind: str
    key: Key
    uid: str


class GarbageCollector:
    """Cost: a dictionary entry per object and per owner reference; nothing for objects without owners."""

    def __init__(self, kinds: set[str], remove: Callable[[Ref], Awaitable[None]], clock: Clock) -> None:
        """`remove` deletes one object by the rules of `delete`, with its uid as precondition."""
        self._kinds, self._remove = kinds, remove
        self._owners: dict[str, Ref] = {}  # uid -> every object that is there
        self._owned: dict[str, tuple[OwnerReference, ...]] = {}  # uid -> the owners it names
        self._dependents: defaultdict[str, set[Ref]] = defaultdict(set)  # an owner's uid -> who names it
        self._queue: WorkQueue[Ref] = WorkQueue(clock, base_s=0.05, cap_s=10.0)

    def keep(self, ref: Ref) -> None:
        """This object is there, as an owner only: it can't be read, but it must not lose what it owns."""
        self._owners[ref.uid] = ref

    def see(self, kind: str, obj: Resource) -> None:
        """The object was added, changed or loaded."""
        ref = Ref(kind, obj.key, obj.uid)
        self._owners[ref.uid] = ref
        named = obj.metadata.owner_references
        before = self._owned.get(ref.uid, ())
        if named == before:
            return
        self._unlink(ref, before)
        if named:
            self._owned[ref.uid] = named
            for owner in named:
                self._dependents[owner.uid].add(ref)
            self._queue.add(ref)

    def lose(self, kind: str, obj: Resource) -> None:
        """The object is gone."""
        ref = Ref(kind, obj.key, obj.uid)
        self._owners.pop(ref.uid, None)
        self._unlink(ref, self._owned.pop(ref.uid, ()))
        for dependent in self._dependents.get(ref.uid, ()):
            self._queue.add(dependent)

    async def run(self) -> None:
        """Remove orphans until `stop`; a store that can't write now is tried again. Run by WORKERS tasks."""
        while True:
            try:
                ref = await self._queue.get()
            except QueueShutDown:
                return
            try:
                if self._is_orphan(ref):
                    await self._remove(ref)
                self._queue.forget(ref)
            except (NotFound, Conflict):  # it went by itself, or is another object by now
                self._queue.forget(ref)
            except Unavailable:
                self._queue.add_backoff(ref)
            except Exception:  # the loop's edge: one object must not stop the collection
                logger.exception("can't collect %s %s", ref.kind, ref.key)
                self._queue.add_backoff(ref)
            finally:
                self._queue.done(ref)

    def stop(self) -> None:
        self._queue.shutdown()

    def _is_orphan(self, ref: Ref) -> bool:
        owners = self._owned.get(ref.uid, ())
        return bool(owners) and not any(self._is_there(owner, ref) for owner in owners)

    def _is_there(self, owner: OwnerReference, ref: Ref) -> bool:
        if owner.kind not in self._kinds:
            return True
        found = self._owners.get(owner.uid)
        return (
            found is not None
            and (found.kind, found.key.name) == (owner.kind, owner.name)
            and found.key.namespace in ("", ref.key.namespace)
        )

    def _unlink(self, ref: Ref, owners: tuple[OwnerReference, ...]) -> None:
        for owner in owners:
            dependents = self._dependents[owner.uid]
            dependents.discard(ref)
            if not dependents:
                del self._dependents[owner.uid]
        if owners:
            self._owned.pop(ref.uid, None)
