"""The store port on a Kubernetes cluster.

Owns which request each verb of the port is. The rules of objects (names, versions, finalizers, deletion, the cascade)
are the API server's own. Never knows a product rule, keeps no object. Picked by main files only; everybody else holds
a `stoker.store.port.Store`.

    async with KubeClient.from_config(clock=clock, seam=seam) as client:
        store = KubeStore(client, clock, fence=election.check)
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from stoker.spec.event import EVENTS
from stoker.spec.meta import Key, Kind, Resource
from stoker.spec.node import NODES, Taint
from stoker.store.clock import Clock
from stoker.store.port import Conflict, Forbidden, Gone, Invalid, Page, Unavailable

from . import manifests
from .client import MERGE_PATCH, Call, KubeClient
from .codec import Codec, OnUnreadable
from .errors import OtherObject
from .fence import Fence
from .limit import RequestLane
from .watch import KubeWatch, WatchPatience, WatchSource, stream_list
from .wire import WireKind
from .wire import wire as wire_of

T = TypeVar("T", bound=Resource)

log = logging.getLogger(__name__)

_CONFLICT_TRIES = 8
_WRITE_TRIES = 2


class KubeStore:
    """Implements `stoker.store.port.Store` for any `Kind`, ours and Kubernetes' own; NODES are read-only."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        fence: Fence | None = None,
        on_unreadable: OnUnreadable | None = None,
        manager: str = "stoker",
        page_limit: int = 500,
        streaming_lists: bool = True,
        patience: WatchPatience | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`fence`: asked before each write. `on_unreadable`: called with objects that can't be read, once per version.

        `manager`: the field manager of creates and updates.
        """
        self._client, self._clock, self._fence, self._on_unreadable = client, clock, fence, on_unreadable
        self._manager, self._page_limit, self._streaming = manager, page_limit, streaming_lists
        self._patience, self._rng = patience or WatchPatience(), rng or random.Random()
        self._codecs: dict[Kind[Any], tuple[WireKind[Any], Codec[Any]]] = {}

    async def get(self, kind: Kind[T], key: Key) -> T:
        wire, codec = self._known(kind)
        return codec.one(await self._client.request(Call("get", kind.kind, str(key)), "GET", wire.path(key)))

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        continue_token: str | None = None,
    ) -> Page[T]:
        wire, codec = self._known(kind)
        query = _fields(kind)
        if labels:
            query["labelSelector"] = ",".join(f"{name}={value}" for name, value in labels.items())
        if limit:
            query["limit"] = str(limit)
        if continue_token is not None:
            query["continue"] = continue_token
        call = Call("list", kind.kind, namespace or "", timeout_s=60.0)
        try:
            raw = await self._client.request(call, "GET", wire.collection(namespace), query=query)
        except Invalid as error:
            if continue_token is None:
                raise
            raise Gone(f"the continue token is none of this store: {error}") from error
        objects, version, rest = codec.page(raw)
        return Page(tuple(objects), version, rest or None)

    async def snapshot(self, kind: Kind[T]) -> Page[T]:
        """A streaming list where the server offers it, else pages; pages too where the stream breaks off."""
        if self._streaming:
            try:
                return await stream_list(self._source(kind))
            except Invalid:
                self._streaming = False
            except Forbidden:
                raise
            except Unavailable as error:
                # A busy server cuts streams off that can't keep up with its writes; pages it always has.
                log.info("listing %s by pages: %s", kind, error)
        found: list[T] = []
        token: str | None = None
        while True:
            page = await self.list(kind, limit=self._page_limit, continue_token=token)
            found += page.items
            token = page.continue_token
            if token is None:
                return Page(tuple(found), page.resource_version)

    def watch(self, kind: Kind[T], *, since: str) -> KubeWatch[T]:
        return KubeWatch(self._source(kind), since)

    async def create(self, kind: Kind[T], obj: T) -> T:
        """Tried twice when it may have been done: then AlreadyExists may mean our own object."""
        wire, codec = self._writable(kind)
        path = wire.collection(obj.metadata.namespace)
        body = manifests.new_manifest(wire, obj)
        return codec.one(await self._write("create", kind, obj.key, "POST", path, body))

    async def update(self, kind: Kind[T], obj: T) -> T:
        wire, codec = self._writable(kind)
        path = wire.path(obj.key)
        if not wire.ours:
            body = manifests.metadata_patch(obj)
            return codec.one(await self._write("update", kind, obj.key, "PATCH", path, body, MERGE_PATCH))
        meta = obj.metadata
        if meta.resource_version:
            body = manifests.replacement(wire, obj, uid=meta.uid, resource_version=meta.resource_version)
            return codec.one(await self._write("update", kind, obj.key, "PUT", path, body))
        tries = 0
        while True:  # custom resources are replaced with a version only, so take the newest
            version = await self._version_of(kind, obj.key, meta.uid)
            body = manifests.replacement(wire, obj, uid=meta.uid, resource_version=version)
            try:
                return codec.one(await self._write("update", kind, obj.key, "PUT", path, body))
            except OtherObject:
                raise
            except Conflict:
                tries += 1
                if tries >= _CONFLICT_TRIES:
                    raise

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
        _, codec = self._writable(kind)
        raw = await self._patch_status(kind, key, patch, manager=manager, uid=uid, resource_version=resource_version)
        return codec.one(raw)

    async def patch_unread(self, kind: Kind[Any], key: Key, patch: Mapping[str, Any], **how: Any) -> str:
        raw = await self._patch_status(kind, key, patch, **how)
        return Resource.model_validate_json(raw).metadata.resource_version

    async def taint_node(self, name: str, taint: Taint, *, there: bool) -> None:
        """Put the taint on a cluster's node, or take it off. Nothing else of it is written. Raises: StoreError."""
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        raw = await self._client.request(Call("get", "Node", name), "GET", path)
        node = json.loads(raw)
        before = node["spec"].get("taints") or []
        others = [one for one in before if (one.get("key"), one.get("effect")) != (taint.key, taint.effect)]
        after = [*others, {"key": taint.key, "effect": taint.effect}] if there else others
        if len(after) == len(before):
            return
        version = node["metadata"]["resourceVersion"]  # the list is written as a whole
        patch = json.dumps({"metadata": {"resourceVersion": version}, "spec": {"taints": after}}).encode()
        await self._write("taint", NODES, Key("", name), "PATCH", path, patch, MERGE_PATCH)

    async def delete(self, kind: Kind[T], key: Key, *, uid: str | None = None, grace_s: int | None = None) -> None:
        wire, _ = self._writable(kind)
        await self._write("delete", kind, key, "DELETE", wire.path(key), manifests.delete_options(uid, grace_s))

    async def _patch_status(
        self,
        kind: Kind[T],
        key: Key,
        patch: Mapping[str, Any],
        *,
        manager: str,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> bytes:
        wire, _ = self._writable(kind)
        path = f"{wire.path(key)}/status"
        tries = 0
        while True:
            # The server leaves a uid in a status patch unread, so it is compared here and held by the version.
            version = await self._version_of(kind, key, uid) if uid and not resource_version else resource_version
            body = manifests.status_patch(wire, patch, uid, version)
            try:
                return await self._write("patch_status", kind, key, "PATCH", path, body, MERGE_PATCH, manager)
            except OtherObject:
                raise
            except Conflict:  # the server gives up after a few rounds against other writers
                tries += 1
                if resource_version is not None or tries >= _CONFLICT_TRIES:
                    raise
                await self._clock.sleep(self._client.backoff_s(1))

    async def _version_of(self, kind: Kind[Any], key: Key, uid: str) -> str:
        """The newest resourceVersion. Raises: Conflict for another uid."""
        wire, _ = self._known(kind)
        raw = await self._client.request(Call("get", kind.kind, str(key)), "GET", wire.path(key))
        newest = Resource.model_validate_json(raw).metadata
        if uid and newest.uid != uid:
            raise OtherObject(f"{kind} {key} has the uid {newest.uid}, not {uid}: it is another object of that name")
        return newest.resource_version

    async def _write(
        self,
        verb: str,
        kind: Kind[Any],
        key: Key,
        method: str,
        path: str,
        body: bytes,
        content_type: str = "application/json",
        manager: str = "",
    ) -> bytes:
        lane = RequestLane.BACKGROUND if kind.kind == EVENTS.kind else RequestLane.WRITE
        query = None if method == "DELETE" else {"fieldManager": f"stoker-{manager}" if manager else self._manager}
        return await self._client.request(
            Call(verb, kind.kind, str(key), lane=lane, tries=_WRITE_TRIES),
            method,
            path,
            query=query,
            body=body,
            content_type=content_type,
            fence=self._fence,
        )

    def _source(self, kind: Kind[T]) -> WatchSource[T]:
        wire, codec = self._known(kind)
        path, query, patience = wire.collection(None), _fields(kind), self._patience
        if kind == EVENTS:
            # The API server keeps no watch cache of events, so it sends no bookmarks: it is to end the watch itself
            # before the silence would look like a dead connection.
            patience = replace(patience, lasts_s=(0.6 * patience.silence_s, 0.8 * patience.silence_s))
        return WatchSource(self._client, codec, path, query, patience, self._rng)

    def _known(self, kind: Kind[T]) -> tuple[WireKind[T], Codec[T]]:
        found = self._codecs.get(kind)
        if found is None:
            wire = wire_of(kind)
            found = self._codecs[kind] = (wire, Codec(wire, self._on_unreadable))
        return found

    def _writable(self, kind: Kind[T]) -> tuple[WireKind[T], Codec[T]]:
        wire, codec = self._known(kind)
        if wire.read_only:
            raise Invalid([f"a {kind} is read from the cluster's own nodes and can't be written"])
        return wire, codec


def _fields(kind: Kind[Any]) -> dict[str, str]:
    return {"fieldSelector": kind.field_selector} if kind.field_selector else {}
