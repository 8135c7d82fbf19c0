"""The embedded store: the store port on one SQLite file, for one process.

Owns which object stands where and who may see it when. Every write is decided on the event loop against the newest
state (`transitions`), made durable in shared commits (`commit`, `db`), then published to readers, watches and the
garbage collector. A refusal that rests on a write still under way waits for its outcome. Never knows a product rule.
Picked by main files only; everybody else holds a `stoker.store.port.Store`.

The caller holds the data folder's lock (`datadir`); the file is held exclusively besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from stoker.spec.event import EVENTS, Event
from stoker.spec.gpu_health import HEALTH
from stoker.spec.job import JOBS
from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.node import NODES
from stoker.spec.pod import PODS
from stoker.spec.queue import QUEUES
from stoker.store.clock import Clock
from stoker.store.port import AlreadyExists, CannotRead, NotFound, Page, StoreError, Unavailable, WatchType
from stoker.store.seam import Seam

from . import transitions
from .commit import GroupCommit
from .db import Database, ObjectRow
from .gc import WORKERS, GarbageCollector, Ref
from .history import HistoryWatch
from .retention import EventRetention
from .table import AnyWrite, Table, Write

T = TypeVar("T", bound=Resource)

logger = logging.getLogger(__name__)

KINDS: tuple[Kind[Any], ...] = (JOBS, QUEUES, NODES, HEALTH, PODS, EVENTS)


class EmbeddedStore:
    """`async with EmbeddedStore(path, clock, seam) as store`: open and loaded inside, closed and complete after.

    Cost: 80 µs of the event loop per create and 55 µs per status write, 2,000 to 6,000 writes/s, on two busy cores
    (tools/bench/store.py, with Python's cyclic collector off; left at its defaults it adds half as much again and
    pauses of 0.2 s at 5,000 jobs, so main files should freeze and relax it). 16 KiB of memory per job.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        seam: Seam | None = None,
        *,
        kinds: Iterable[Kind[Any]] = KINDS,
        history: int = 4096,
        max_events: int = 20_000,
        max_events_per_object: int = 200,
    ) -> None:
        """`history`: changes of each kind that are kept for watches (at least; a quarter more at most)."""
        self._path, self._clock, self._seam = path, clock, seam or Seam()
        self._kinds, self._history = tuple(kinds), history
        self._tables: dict[str, Table[Any]] = {}
        self._version = 0  # the newest given to a write
        self._published = 0  # the newest that readers see
        self._events = EventRetention(max_events, max_events_per_object)
        self._gc = GarbageCollector({kind.kind for kind in self._kinds}, self._collect, clock)
        self._gc_tasks: list[asyncio.Task[None]] = []
        self._database: Database | None = None
        self._commit: GroupCommit | None = None
        self._surplus: list[Key] = []  # events over the limit in the file just read
        self.unreadable: list[tuple[str, Key, str]] = []
        """Objects in the file that this version can't read: kind, key, why. They stay there and keep their names."""

    async def __aenter__(self) -> Self:
        """Raises: Unavailable, WrongFile."""
        database = await asyncio.to_thread(self._open)
        self._database = database
        self._commit = GroupCommit(database, self._seam, publish=self._publish, abort=self._abort)
        self._prune(self._tables[EVENTS.kind], self._surplus)
        self._gc_tasks = [asyncio.create_task(self._gc.run(), name=f"store-gc-{n}") for n in range(WORKERS)]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._database is not None and self._commit is not None
        self._gc.stop()
        await self._commit.close()
        for task in self._gc_tasks:
            task.cancel()
        await asyncio.gather(*self._gc_tasks, return_exceptions=True)
        for table in self._tables.values():
            table.history.close()
        self._commit = None
        await asyncio.to_thread(self._database.close)

    @property
    def trouble(self) -> str:
        """Why the disk takes no writes now; '': it does."""
        return "" if self._commit is None else self._commit.trouble

    async def get(self, kind: Kind[T], key: Key) -> T:
        table = self._table(kind)
        obj = table.objects.get(key)
        if obj is None:
            raise _absent(table, key)
        return obj

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        continue_token: str | None = None,
    ) -> Page[T]:
        table = self._table(kind)
        if continue_token is not None:
            return table.next_page(continue_token, limit)
        return table.first_page(self._published, namespace, labels, limit)

    async def snapshot(self, kind: Kind[T]) -> Page[T]:
        return self._table(kind).first_page(self._published, None, None, None)

    def watch(self, kind: Kind[T], *, since: str) -> HistoryWatch[T]:
        return HistoryWatch(self._table(kind).history, since, self._published)

    async def create(self, kind: Kind[T], obj: T) -> T:
        with self._crossing("create", kind, obj.key):
            table, key = self._table(kind), obj.key
            if table.head(key) is not None or key in table.unreadable:
                await self._settled(table, key)
                raise AlreadyExists(f"{kind} {key} exists already")
            new = transitions.created(
                kind, obj, uid=str(uuid.uuid4()), version=self._next_version(), now=self._clock.now()
            )
            await _outcome(self._submit(table, WatchType.ADDED, new))
            return new

    async def update(self, kind: Kind[T], obj: T) -> T:
        with self._crossing("update", kind, obj.key):

            def decide(old: T) -> T:
                return transitions.updated(kind, old, obj, version=self._next_version())

            return await self._change(self._table(kind), obj.key, decide)

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
        with self._crossing("patch_status", kind, key):

            def decide(old: T) -> T:
                transitions.check(old, uid=uid, resource_version=resource_version)
                return transitions.status_patched(kind, old, patch, version=self._next_version())

            return await self._change(self._table(kind), key, decide)

    async def patch_unread(self, kind: Kind[Any], key: Key, patch: Mapping[str, Any], **how: Any) -> str:
        stored: Resource = await self.patch_status(kind, key, patch, **how)
        return stored.metadata.resource_version

    async def delete(self, kind: Kind[T], key: Key, *, uid: str | None = None, grace_s: int | None = None) -> None:
        with self._crossing("delete", kind, key):
            await self._delete(self._table(kind), key, uid, grace_s)

    # Writing.

    async def _delete(self, table: Table[T], key: Key, uid: str | None, grace_s: int | None) -> None:
        def decide(old: T) -> T:
            transitions.check(old, uid=uid)
            return transitions.deleted(old, grace_s=grace_s, version=self._next_version(), now=self._clock.now())

        await self._change(table, key, decide)

    async def _change(self, table: Table[T], key: Key, decide: Callable[[T], T]) -> T:
        """Write what `decide` makes of the object's newest version. Returns: it, once it is on the disk."""
        old = table.head(key)
        try:
            if old is None:
                raise _absent(table, key)
            new = decide(old)
        except StoreError:
            await self._settled(table, key)
            raise
        if new is old:
            await self._settled(table, key)
            return old
        going = new.metadata.deletion_timestamp is not None and not new.metadata.finalizers
        await _outcome(self._submit(table, WatchType.DELETED if going else WatchType.MODIFIED, new))
        return new

    async def _settled(self, table: Table[T], key: Key) -> None:
        """Wait for the write that the caller's answer rests on. Raises: Unavailable if it fails."""
        write = table.pending(key)
        if write is not None:
            await _outcome(write)

    def _submit(self, table: Table[T], change: WatchType, obj: T) -> Write[T]:
        if self._commit is None:
            raise Unavailable("the store is closed")
        write = Write(table, change, int(obj.metadata.resource_version), obj)
        self._commit.submit(write)
        table.begin(write)
        return write

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    # Publishing, after a commit.

    def _publish(self, batch: Iterable[AnyWrite]) -> None:
        tables: dict[str, Table[Any]] = {}
        for write in batch:
            table, obj = write.table, write.obj
            table.publish(write)
            self._published = write.version
            if write.type is WatchType.DELETED:
                self._gc.lose(table.kind.kind, obj)
            else:
                self._gc.see(table.kind.kind, obj)
            if isinstance(obj, Event):
                self._retain(table, write.type, obj)
            tables[table.kind.kind] = table
        for table in tables.values():
            table.history.wake()

    def _abort(self, batch: Iterable[AnyWrite]) -> None:
        for write in batch:
            write.table.abort(write)

    def _retain(self, table: Table[Any], change: WatchType, event: Event) -> None:
        if change is WatchType.DELETED:
            self._events.lose(event.key)
        elif change is WatchType.ADDED:
            self._prune(table, self._events.see(event))

    def _prune(self, table: Table[Any], keys: Iterable[Key]) -> None:
        """Let go of events that are too many. Nothing waits for it; what fails is counted again at the next start."""
        for key in keys:
            old = table.head(key)
            if old is not None:
                with contextlib.suppress(Unavailable):
                    gone = transitions.removed(old, version=self._next_version())
                    self._submit(table, WatchType.DELETED, gone)

    async def _collect(self, ref: Ref) -> None:
        table = self._tables[ref.kind]
        with self._crossing("collect", table.kind, ref.key):
            await self._delete(table, ref.key, ref.uid, None)

    # Opening.

    def _open(self) -> Database:
        """Read the whole file into memory; blocks. Cost: about 100 µs per object."""
        database = Database(self._path)
        try:
            self._version = self._published = version = database.newest_version()
            self._tables = {kind.kind: Table(kind, version, self._history, self._clock) for kind in self._kinds}
            for row in sorted(database.load(), key=lambda row: row.version):
                self._load(row)
        except BaseException:
            database.close()
            raise
        for kind, key, reason in self.unreadable:
            logger.error("can't read %s %s of %s, left as it is: %s", kind, key, self._path, reason)
        return database

    def _load(self, row: ObjectRow) -> None:
        key = Key(row.namespace, row.name)
        table = self._tables.get(row.kind)
        try:
            if table is None:
                raise ValueError(f"this Stoker knows no {row.kind}")
            obj = table.kind.model.model_validate_json(row.json or "")
        except ValueError as error:
            self.unreadable.append((row.kind, key, str(error)))
            self._gc.keep(Ref(row.kind, key, row.uid))
            if table is not None:
                table.unreadable.add(key)
            return
        table.load(obj)
        self._gc.see(row.kind, obj)
        if isinstance(obj, Event):
            self._surplus.extend(self._events.see(obj))

    # Small things.

    def _table(self, kind: Kind[T]) -> Table[T]:
        table = self._tables.get(kind.kind)
        if table is None:
            raise NotFound(f"this store keeps no {kind}")
        if self._commit is None:
            raise Unavailable("the store is closed")
        return table

    @contextlib.contextmanager
    def _crossing(self, verb: str, kind: Kind[Any], key: Key) -> Iterator[None]:
        try:
            with self._seam.crossing(f"store.{verb} {kind.kind}", key):
                yield
        except OSError as error:  # only the seam raises one here: what a lost connection is to the other adapter
            raise Unavailable(str(error)) from error


async def _outcome(write: AnyWrite) -> None:
    """Wait until the write is on the disk. Raises: Unavailable if it can't be. Cancelling the caller leaves it be."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    write.waiters.append(waiter)
    await waiter


def _absent(table: Table[Any], key: Key) -> StoreError:
    if key in table.unreadable:
        return CannotRead(f"this version of Stoker can't read {table.kind} {key}; the server's log says why")
    return NotFound(f"there is no {table.kind} {key}")
