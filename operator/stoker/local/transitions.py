"""What each verb makes of an object: the next version of it, or why it is refused. Pure.

Owns the object rules that Kubernetes' API server keeps for the other adapter: names, generation, status apart from the
rest, finalizers, deletion marks. Never reads a clock, assigns a version by itself or knows SQLite. Called by
`store.EmbeddedStore` only. Every object that comes out has been through its JSON form, so what is stored can be read
back (a NaN, say, has no JSON form and is refused here instead of at the next start).

Source: Kubernetes apimachinery `validation` (names, labels), apiserver `registry/rest` (BeforeCreate, BeforeUpdate,
BeforeDelete); timestamps have whole seconds as `metav1.Time` has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from stoker.spec.meta import ApiModel, Kind, ObjectMeta, Resource
from stoker.store.port import Conflict, Invalid

T = TypeVar("T", bound=Resource)

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

_NOT_BODY = frozenset({"metadata", "status"})


def created(kind: Kind[T], obj: T, *, uid: str, version: str, now: datetime) -> T:
    """The object as a new one. Raises: Invalid."""
    given = obj.metadata
    errors = _key_errors(kind, given) + _metadata_errors(given)
    if errors:
        raise Invalid(errors)
    metadata = ObjectMeta(
        name=given.name,
        namespace=given.namespace,
        uid=uid,
        resource_version=version,
        generation=1,
        creation_timestamp=now.replace(microsecond=0),
        labels=given.labels,
        annotations=given.annotations,
        finalizers=given.finalizers,
        owner_references=given.owner_references,
    )
    return _through_json(kind, obj.model_copy(update={"metadata": metadata, **_new_status(kind)}))


def updated(kind: Kind[T], old: T, obj: T, *, version: str) -> T:
    """`old` with the writable metadata and the body of `obj`; `old` itself if that changes nothing.

    Raises: Conflict, Invalid.
    """
    check(old, uid=obj.metadata.uid or None, resource_version=obj.metadata.resource_version or None)
    given = obj.metadata
    errors = _metadata_errors(given)
    if old.metadata.deletion_timestamp is not None:
        added = [name for name in given.finalizers if name not in old.metadata.finalizers]
        errors += [f"metadata.finalizers: {name} can't be added to an object under deletion" for name in added]
    if errors:
        raise Invalid(errors)
    metadata = old.metadata.model_copy(
        update={
            "labels": given.labels,
            "annotations": given.annotations,
            "finalizers": given.finalizers,
            "owner_references": given.owner_references,
        }
    )
    keep = {"status": getattr(old, "status", None)} if "status" in kind.model.model_fields else {}
    new = _through_json(kind, obj.model_copy(update={"metadata": metadata, **keep}))
    if new == old:
        return old
    body_changed = any(
        getattr(new, name) != getattr(old, name) for name in kind.model.model_fields if name not in _NOT_BODY
    )
    if body_changed:
        errors = kind.update_errors(old, new)
        if errors:
            raise Invalid(errors)
    return _with_metadata(
        new, resource_version=version, generation=old.metadata.generation + (1 if body_changed else 0)
    )


def status_patched(kind: Kind[T], old: T, patch: Mapping[str, Any], *, version: str) -> T:
    """`old` with the merge patch applied to its status; `old` itself if that changes nothing. Raises: Invalid."""
    status = getattr(old, "status", None)
    if not isinstance(status, ApiModel):
        raise Invalid([f"{kind} has no status"])
    merged = merge_patch(status.dump(), patch)
    try:
        new_status = type(status).model_validate(merged, by_alias=True, by_name=False)
        new_status = type(status).model_validate_json(_json(new_status))
    except (ValidationError, ValueError) as error:
        raise Invalid(_sentences(error, "status")) from None
    if new_status == status:
        return old
    return _with_metadata(old.model_copy(update={"status": new_status}), resource_version=version)


def deleted(old: T, *, grace_s: int | None, version: str, now: datetime) -> T:
    """The object under deletion, its finalizers decide from now on; `old` itself if it is that already."""
    if old.metadata.deletion_timestamp is not None:
        return old
    return _with_metadata(
        old,
        resource_version=version,
        deletion_timestamp=now.replace(microsecond=0),
        deletion_grace_period_seconds=grace_s,
    )


def removed(old: T, *, version: str) -> T:
    """The object's last version, as watchers see it go."""
    return _with_metadata(old, resource_version=version)


def check(old: Resource, *, uid: str | None, resource_version: str | None = None) -> None:
    """Raises: Conflict when the object is not the one the caller read."""
    if uid is not None and uid != old.uid:
        raise Conflict(f"{old.kind} {old.key} has the uid {old.uid}, not {uid}: it is another object of that name")
    if resource_version is not None and resource_version != old.metadata.resource_version:
        raise Conflict(
            f"{old.kind} {old.key} is at version {old.metadata.resource_version}, not {resource_version}: read it again"
        )


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged key by key, null deletes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def to_json(obj: Resource) -> str:
    """The stored form."""
    return _json(obj)


def _json(model: BaseModel) -> str:
    # A value of a wrong type warns here and is refused when the JSON is read back; once is enough.
    return model.model_dump_json(by_alias=True, exclude_none=True, warnings=False)


def _through_json(kind: Kind[T], obj: T) -> T:
    try:
        return kind.model.model_validate_json(_json(obj))
    except (ValidationError, ValueError) as error:
        raise Invalid(_sentences(error)) from None


def _with_metadata(obj: T, **changes: Any) -> T:
    return obj.model_copy(update={"metadata": obj.metadata.model_copy(update=changes)})


def _new_status(kind: Kind[Any]) -> dict[str, Any]:
    field = kind.model.model_fields.get("status")
    # Not get_default(): that copies the default deeply (90 µs), and ours are frozen.
    return {} if field is None else {"status": field.default}


def _key_errors(kind: Kind[Any], metadata: ObjectMeta) -> list[str]:
    errors = []
    if len(metadata.name) > 253 or not _NAME.fullmatch(metadata.name):
        errors.append(
            f"metadata.name {metadata.name!r} must be lower-case letters, digits, '-' and '.', starting and ending "
            "with a letter or digit, at most 253 characters"
        )
    if kind.namespaced and (len(metadata.namespace) > 63 or not _NAMESPACE.fullmatch(metadata.namespace)):
        errors.append(
            f"metadata.namespace {metadata.namespace!r} must be lower-case letters, digits and '-', starting and "
            "ending with a letter or digit, at most 63 characters"
        )
    if not kind.namespaced and metadata.namespace:
        errors.append(f"metadata.namespace must be empty: a {kind} belongs to no namespace")
    return errors


def _metadata_errors(metadata: ObjectMeta) -> list[str]:
    names = [("labels", name) for name in metadata.labels]
    names += [("annotations", name) for name in metadata.annotations]
    names += [("finalizers", name) for name in metadata.finalizers]
    errors = [f"metadata.{where}: {name!r} is no valid name" for where, name in names if not _QUALIFIED.fullmatch(name)]
    errors += [
        f"metadata.labels.{name}: {value!r} must be at most 63 letters, digits, '-', '_' and '.'"
        for name, value in metadata.labels.items()
        if not _LABEL_VALUE.fullmatch(value)
    ]
    return errors


def _sentences(error: ValueError, under: str = "") -> list[str]:
    if not isinstance(error, ValidationError):
        return [str(error)]
    return [
        f"{'.'.join(str(part) for part in ((under,) if under else ()) + fault['loc'])}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
