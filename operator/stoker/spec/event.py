"""Event: what happened to an object, for people. Ordered by `metadata.resource_version`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from .meta import Kind, Resource, StatusModel
from .names import API_VERSION


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectRef(StatusModel):
    kind: str
    namespace: str = ""
    name: str
    uid: str = ""


class Event(Resource):
    """Source: Kubernetes core/v1 Event; the fields we use."""

    api_version: str = "v1"
    kind: str = "Event"
    involved_object: ObjectRef
    type: EventType = EventType.NORMAL
    reason: str
    message: str = ""
    first_timestamp: datetime
    reporting_component: str = "stoker"


EVENTS = Kind(
    Event, "v1", "Event", "events", namespaced=True, field_selector=f"involvedObject.apiVersion={API_VERSION}"
)
