"""Event: what happened to an object, for people. Ordered by `metadata.resource_version`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from .meta import Key, Kind, ObjectMeta, OwnerReference, Resource, StatusModel
from .names import API_VERSION, DEFAULT_PROJECT


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectRef(StatusModel):
    kind: str
    """What it is."""
    namespace: str = ""
    """Its project; empty: it is shared by all."""
    name: str
    """Its name."""
    uid: str = ""
    """Of this very object."""


class Event(Resource):
    """Source: Kubernetes core/v1 Event; the fields we use."""

    api_version: str = "v1"
    kind: str = "Event"
    involved_object: ObjectRef
    """What it happened to."""
    type: EventType = EventType.NORMAL
    """Normal, or Warning: look at it."""
    reason: str
    """What happened, as a stable code."""
    message: str = ""
    """The same, for people."""
    first_timestamp: datetime
    """When it happened."""
    reporting_component: str = "stoker"
    """Which part of Stoker or of the cluster says so."""


MESSAGE_MAX = 1024
"""Kubernetes takes no longer one. Units: characters."""


class Subject(StatusModel):
    """The object an event is about."""

    kind: str
    api_version: str
    key: Key
    uid: str


def event_about(
    subject: Subject,
    reason: str,
    message: str,
    *,
    at: datetime,
    mark: str,
    component: str,
    kind: EventType = EventType.NORMAL,
) -> Event:
    """An event that goes with its subject. What has the same `mark` (part of its name) is the same event."""
    namespace, name = subject.key
    return Event(
        metadata=ObjectMeta(
            name=f"{name}.{subject.uid[:8]}.{reason.lower()}.{mark}",
            namespace=namespace or DEFAULT_PROJECT,  # as Kubernetes has it for what is in none
            owner_references=(
                OwnerReference(
                    api_version=subject.api_version, kind=subject.kind, name=name, uid=subject.uid, controller=True
                ),
            ),
        ),
        involved_object=ObjectRef(kind=subject.kind, namespace=namespace, name=name, uid=subject.uid),
        type=kind,
        reason=reason,
        message=message[:MESSAGE_MAX],
        first_timestamp=at,
        reporting_component=component,
    )


EVENTS = Kind(
    Event, "v1", "Event", "events", namespaced=True, field_selector=f"involvedObject.apiVersion={API_VERSION}"
)


class MountFailure(Event):
    """A cluster's own, of a pod whose volumes can't be mounted."""

    last_timestamp: datetime | None = None
    """When it happened last: one event stands for all."""


MOUNT_FAILURES = Kind(
    MountFailure, "v1", "Event", "events", namespaced=True, field_selector="reason=FailedMount,source=kubelet"
)
