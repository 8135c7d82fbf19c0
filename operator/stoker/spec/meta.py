"""What every object has: metadata, owner references, conditions; and `Kind`, the handle by which stores name a type.

Objects are Kubernetes-shaped and immutable once built: a change is a new object (`model_copy(update=…)`), so caches,
watchers and threads may share one without copying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.alias_generators import to_camel

from .descriptions import into_json_schema
from .markers import Keyed


class ApiModel(BaseModel):
    """Immutable, with the names of the API."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
        json_schema_extra=into_json_schema,
    )

    def dump(self) -> dict[str, Any]:
        """JSON-ready data with the names of the API; fields that are not set are absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class SpecModel(ApiModel):
    """What a user writes: unknown fields are errors with a pointer to them."""

    model_config = ConfigDict(extra="forbid")


class StatusModel(ApiModel):
    """What Stoker or the cluster writes: unknown fields (a newer version's) are left aside."""

    model_config = ConfigDict(extra="ignore")


class Key(NamedTuple):
    """Where an object lives. Cluster-scoped objects have the namespace ''."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


LATEST_SEEN = datetime(9999, 1, 1, tzinfo=UTC)


def _seen_time(value: Any, read: ValidatorFunctionWrapHandler) -> datetime:
    """Who deletes a pod sets its grace in seconds, up to years that a datetime has not: those are as good as never."""
    try:
        at: datetime = read(value)
        return min(at, LATEST_SEEN)
    except (ValueError, TypeError):
        return LATEST_SEEN


SeenTime = Annotated[datetime, WrapValidator(_seen_time)]
"""A time written by others: any text is accepted, so that no object becomes unreadable for it."""


class OwnerReference(StatusModel):
    api_version: str
    """The owner's."""
    kind: str
    """The owner's."""
    name: str
    """The owner's."""
    uid: str
    """The owner's: of two objects of one name only this one is meant."""
    controller: bool = False
    """It is the owner that looks after the object."""
    block_owner_deletion: bool = False
    """Whether the owner, deleted in the foreground, waits for the object."""


class ObjectMeta(StatusModel):
    name: str
    """Unique among the objects of its kind in its namespace."""
    namespace: str = ""
    """The project; empty: the object is shared by all."""
    uid: str = ""
    """Of this very object: one that is made anew under its name has another."""
    resource_version: str = ""
    """Changes with each write of the object."""
    generation: int = 0
    """Counts the changes of the spec."""
    creation_timestamp: datetime | None = None
    """When it was created."""
    deletion_timestamp: SeenTime | None = None
    """Since when it is being deleted. Absent: it is not."""
    deletion_grace_period_seconds: int | None = None
    """How long it may take to end."""
    labels: Mapping[str, str] = {}
    """Names and values that lists select by; those under stoker.dev/ are Stoker's."""
    annotations: Mapping[str, str] = {}
    """Names and texts kept with it; those under stoker.dev/ are Stoker's."""
    finalizers: tuple[str, ...] = ()
    """What must be done before it goes."""
    owner_references: tuple[OwnerReference, ...] = ()
    """The objects with which it is deleted."""


class Resource(StatusModel):
    """The root of every stored object. Subclasses add `spec` and `status`."""

    api_version: str = ""
    """The group and version of its form."""
    kind: str = ""
    """What it is."""
    metadata: ObjectMeta
    """Its name, labels and versions."""

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def uid(self) -> str:
        return self.metadata.uid


class Condition(StatusModel):
    """A Kubernetes condition (API conventions, "typical status properties")."""

    type: str
    """What it says something about."""
    status: str
    """True, False or Unknown."""
    reason: str
    """Why, as a stable code."""
    message: str = ""
    """The same, for people."""
    last_transition_time: datetime
    """When `status` last changed."""
    observed_generation: int = 0
    """The metadata.generation it was found at."""


Conditions = Annotated[tuple[Condition, ...], Keyed("type")]

ResourceT = TypeVar("ResourceT", bound=Resource)


def _no_rules(_old: Any, _new: Any) -> list[str]:
    return []


@dataclass(frozen=True)
class Kind(Generic[ResourceT]):
    """A type of object as stores and routes name it.

    `update_errors(old, new)` says what a change to the spec breaks (immutable fields), as messages; stores
    refuse such an update with `Invalid`.
    """

    model: type[ResourceT]
    api_version: str
    kind: str
    plural: str
    namespaced: bool
    field_selector: str = ""
    """Which objects of the resource are meant: a cluster holds other people's too, the embedded store only ours."""
    update_errors: Callable[[ResourceT, ResourceT], list[str]] = field(default=_no_rules)

    def __str__(self) -> str:
        return self.kind
