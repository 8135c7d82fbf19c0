"""From objects to the bodies of requests: what is created, replaced, patched, deleted, and what of it is ours to write.

Pure. Called by `store.KubeStore`; `codec` is the way back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from stoker.spec.event import EVENTS, Event
from stoker.spec.job import JOBS
from stoker.spec.meta import ApiModel, Kind, ObjectMeta, OwnerReference, Resource
from stoker.spec.pod import PODS
from stoker.store.port import Invalid

from .wire import WireKind

T = TypeVar("T", bound=Resource)


def new_manifest(wire: WireKind[T], obj: T) -> bytes:
    """The body of a create. Raises: Invalid for what must not be written or could not be read back."""
    kind, given = wire.kind, obj.metadata
    if kind.namespaced and not given.namespace:
        raise Invalid([f"metadata.namespace: a {kind} belongs to a namespace"])
    if not kind.namespaced and given.namespace:
        raise Invalid([f"metadata.namespace must be empty: a {kind} belongs to no namespace"])
    if not given.name:
        raise Invalid(["metadata.name must be given"])
    # Queues and runtimes keep what their administrators wrote; a default that is added later is theirs too.
    body = _body(obj, exclude_unset=wire.ours and kind.kind != JOBS.kind)
    if kind.kind == PODS.kind:
        body["spec"] = _pinned(body["spec"])
    elif isinstance(obj, Event):
        body |= _event_fields(obj)
    metadata: dict[str, Any] = {"name": given.name} | _writable(given, exclude_unset=False)
    if given.namespace:
        metadata["namespace"] = given.namespace
    manifest = {"apiVersion": wire.api_version, "kind": wire.name, "metadata": metadata, **body}
    return _checked(wire, manifest) if wire.ours else _json(manifest)


def replacement(wire: WireKind[T], obj: T, *, uid: str, resource_version: str) -> bytes:
    """The body of a PUT: exactly the fields that were read or set, so that no default is written into another's object.

    Raises: Invalid.
    """
    given = obj.metadata
    metadata: dict[str, Any] = {"name": given.name, "resourceVersion": resource_version}
    metadata |= _writable(given, exclude_unset=True)
    if given.namespace:
        metadata["namespace"] = given.namespace
    if uid:
        metadata["uid"] = uid
    manifest = {"apiVersion": wire.api_version, "kind": wire.name, "metadata": metadata}
    return _checked(wire, manifest | _body(obj, exclude_unset=True))


def metadata_patch(obj: Resource) -> bytes:
    """A merge patch of what is ours in an object that we see only in part."""
    given = obj.metadata
    metadata: dict[str, Any] = {
        "labels": dict(given.labels),
        "annotations": dict(given.annotations),
        "finalizers": list(given.finalizers),
        "ownerReferences": [_owner(ref, exclude_unset=True) for ref in given.owner_references],
    }
    if given.uid:
        metadata["uid"] = given.uid
    if given.resource_version:
        metadata["resourceVersion"] = given.resource_version
    return _json({"metadata": metadata})


def status_patch(wire: WireKind[Any], patch: Mapping[str, Any], uid: str | None, resource_version: str | None) -> bytes:
    """A merge patch of status with its preconditions. Raises: Invalid for what could not be read back.

    The CRDs leave the status open, so that an older server takes what a newer Stoker writes: values are checked here.
    """
    body: dict[str, Any] = {"status": patch}
    if wire.ours:
        _check_status(wire.kind, patch)
    metadata = {"uid": uid, "resourceVersion": resource_version}
    given = {name: value for name, value in metadata.items() if value is not None}
    return _json({"metadata": given, **body} if given else body)


def delete_options(uid: str | None, grace_s: int | None) -> bytes:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return _json(options)


def _body(obj: Resource, *, exclude_unset: bool) -> dict[str, Any]:
    """All but metadata and status."""
    return obj.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude_unset=exclude_unset,
        exclude={"api_version", "kind", "metadata", "status"},
        warnings=False,
    )


def _writable(given: ObjectMeta, *, exclude_unset: bool) -> dict[str, Any]:
    return {
        "labels": dict(given.labels),
        "annotations": dict(given.annotations),
        "finalizers": list(given.finalizers),
        "ownerReferences": [_owner(ref, exclude_unset=exclude_unset) for ref in given.owner_references],
    }


def _owner(ref: OwnerReference, *, exclude_unset: bool) -> dict[str, Any]:
    return ref.model_dump(mode="json", by_alias=True, exclude_unset=exclude_unset)


def _pinned(spec: dict[str, Any]) -> dict[str, Any]:
    """The node as required affinity, the way the DaemonSet controller pins: the cluster's scheduler does the bind."""
    node = spec.pop("nodeName", "")
    if node and "affinity" not in spec:
        match = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [match]}}
        spec["affinity"] = {"nodeAffinity": required}
    return spec


_API_VERSIONS = {kind.kind: kind.api_version for kind in (JOBS, PODS, EVENTS)}


def _event_fields(event: Event) -> dict[str, Any]:
    """What core/v1 wants beside what we say. Source: Kubernetes core/v1 Event, client-go tools/record."""
    about = event.involved_object.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    about["apiVersion"] = _API_VERSIONS.get(event.involved_object.kind, JOBS.api_version)
    at = event.first_timestamp.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    return {
        "involvedObject": about,
        "source": {"component": event.reporting_component},
        "reportingInstance": os.environ.get("HOSTNAME") or os.uname().nodename,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _check_status(kind: Kind[Any], patch: Mapping[str, Any]) -> None:
    """Each value that the patch sets; what it leaves out may stand in the object already. Raises: Invalid."""
    field = kind.model.model_fields.get("status")
    if field is None:
        raise Invalid([f"{kind} has no status"])
    try:
        _status_adapter(kind.model).validate_json(_json(_without_nulls(patch)))
    except ValidationError as error:
        wrong = sentences(error, leave_out="missing")
        if wrong:
            raise Invalid([f"status.{text}" for text in wrong]) from None


_status_adapters: dict[type[Resource], TypeAdapter[Any]] = {}


def _status_adapter(model: type[Resource]) -> TypeAdapter[Any]:
    """Building one costs milliseconds, so each model has one."""
    if model not in _status_adapters:
        annotation: Any = model.model_fields["status"].annotation
        _status_adapters[model] = TypeAdapter(annotation)
    return _status_adapters[model]


def _without_nulls(patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    return {name: _without_nulls(value) for name, value in patch.items() if value is not None}


def _checked(wire: WireKind[Any], manifest: dict[str, Any]) -> bytes:
    """Ours is read back before it is sent: what is stored can be read. Raises: Invalid."""
    raw = _json(manifest)
    try:
        wire.kind.model.model_validate_json(raw)
    except ValidationError as error:
        raise Invalid(sentences(error)) from None
    return raw


def sentences(error: ValidationError, *, leave_out: str = "") -> list[str]:
    """A fault each, with the path to it; those of the type `leave_out` are omitted."""
    return [
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
        if fault["type"] != leave_out
    ]


def _json(data: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False, default=_plain).encode()
    except (ValueError, TypeError) as error:
        raise Invalid([f"not to be said in JSON: {error}"]) from None


def _plain(value: Any) -> Any:
    if isinstance(value, ApiModel):
        return value.dump()
    raise TypeError(f"a {type(value).__name__}")
