"""Projects' secrets on a cluster: its own Secrets, written and listed with the caller's token.

Stoker's accounts have no right on Secrets. Owns the requests; no value comes back by them: the server is asked for
metadata only, in which `managedFields` name the keys. Picked by `stoker_api.main`.

Source: Kubernetes "Receiving resources as … metadata" (PartialObjectMetadata), "Server-Side Apply" (managedFields).
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pydantic import JsonValue

from stoker.spec.meta import StatusModel
from stoker.spec.names import SECRET_TYPE
from stoker.spec.project_secrets import object_name, project_name
from stoker.spec.rest import ProjectSecret
from stoker.store.port import AlreadyExists, Conflict, Forbidden, NotFound, NotPermitted

from .client import JSON, MERGE_PATCH, Call, KubeClient

_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_MANY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = "500"
_KEY = "f:"
_TRIES = 5


class _Managed(StatusModel):
    time: datetime | None = None
    fields_v1: Mapping[str, JsonValue] = {}


class _Metadata(StatusModel):
    name: str
    uid: str
    resource_version: str
    creation_timestamp: datetime
    managed_fields: tuple[_Managed, ...] = ()


class _Partial(StatusModel):
    metadata: _Metadata

    def shown(self, name: str) -> ProjectSecret:
        meta = self.metadata
        keys = set[str]()
        for managed in meta.managed_fields:
            data = managed.fields_v1.get("f:data")
            if isinstance(data, dict):
                keys |= {key.removeprefix(_KEY) for key in data if key.startswith(_KEY)}
        times = [managed.time for managed in meta.managed_fields if managed.time is not None]
        changed_at = max(times, default=meta.creation_timestamp)
        return ProjectSecret(
            name=name, keys=tuple(sorted(keys)), created_at=meta.creation_timestamp, changed_at=changed_at
        )


class _ListMetadata(StatusModel):
    continue_: str = ""

    model_config = {"alias_generator": lambda name: name.rstrip("_"), "extra": "ignore", "frozen": True}


class _PartialList(StatusModel):
    metadata: _ListMetadata = _ListMetadata()
    items: tuple[_Partial, ...] | None = None


class KubeSecrets:
    """Implements `stoker_api.ports.Secrets`. `client`: one without credentials of its own (`anonymous`)."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def listed(self, token: str, project: str) -> list[ProjectSecret]:
        """By name. Raises: StoreError."""
        named = [(project_name(one.metadata.name), one) for one in await self._all(token, project)]
        return sorted((one.shown(name) for name, one in named if name), key=lambda secret: secret.name)

    async def put(self, token: str, project: str, name: str, key: str, value: str) -> tuple[ProjectSecret, bool]:
        """The secret with one value set; whether it is new. Raises: StoreError."""
        data = {"type": SECRET_TYPE, "data": {key: base64.b64encode(value.encode()).decode()}}
        # The type can't change: another's Secret of this name is refused.
        for _ in range(_TRIES):
            try:
                made = await self._send(token, "patch", project, name, data)
            except NotFound:
                with contextlib.suppress(AlreadyExists):
                    made = await self._send(token, "create", project, name, data)
                    return made.shown(name), True
            else:
                return made.shown(name), False
        raise Conflict(f"secret {name} is made and deleted by others")

    async def delete(self, token: str, project: str, name: str, key: str | None) -> None:
        """Delete one value, or with None the whole secret. Raises: NotFound, other StoreErrors."""
        found = await self._all(token, project, f",metadata.name={object_name(name)}")
        if not found or (key is not None and key not in found[0].shown(name).keys):
            raise NotFound(name if key is None else f"{name}/{key}")
        meta = found[0].metadata
        if key is None or found[0].shown(name).keys == (key,):
            precondition = {"uid": meta.uid, "resourceVersion": meta.resource_version}
            await self._request(token, "delete", "DELETE", project, name, {"preconditions": precondition})
        else:
            change = {"metadata": {"resourceVersion": meta.resource_version}, "data": {key: None}}
            await self._send(token, "patch", project, name, change)

    async def _send(self, token: str, verb: str, project: str, name: str, body: dict[str, Any]) -> _Partial:
        if verb == "create":
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": object_name(name)}, **body}
            return _Partial.model_validate_json(await self._request(token, verb, "POST", project, "", body))
        return _Partial.model_validate_json(await self._request(token, verb, "PATCH", project, name, body))

    async def _all(self, token: str, project: str, more: str = "") -> list[_Partial]:
        query, found = {"fieldSelector": f"type={SECRET_TYPE}{more}", "limit": _PAGE}, list[_Partial]()
        while True:
            with _callers():
                raw = await self._client.request(
                    Call("list", "Secret", project), "GET", _path(project), query=query, accept=_MANY, token=token
                )
            page = _PartialList.model_validate_json(raw)
            found += page.items or ()
            if not page.metadata.continue_:
                return found
            query["continue"] = page.metadata.continue_

    async def _request(
        self, token: str, verb: str, method: str, project: str, name: str, body: dict[str, Any]
    ) -> bytes:
        call = Call(verb, "Secret", f"{project}/{name or body['metadata']['name']}", tries=1)
        path = _path(project) + (f"/{object_name(name)}" if name else "")
        with _callers():
            return await self._client.request(
                call,
                method,
                path,
                query=None if method == "DELETE" else {"fieldManager": "stoker-secrets"},
                body=json.dumps(body).encode(),
                content_type=MERGE_PATCH if method == "PATCH" else JSON,
                accept=_ONE,
                token=token,
            )


def _path(project: str) -> str:
    return f"/api/v1/namespaces/{quote(project, safe='')}/secrets"


@contextlib.contextmanager
def _callers() -> Iterator[None]:
    """It is the caller's account that is refused, not ours."""
    try:
        yield
    except NotPermitted as error:
        raise Forbidden(str(error)) from None
