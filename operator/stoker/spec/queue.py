"""Queue: who may use how much at a time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .form import DISTINCT
from .meta import Kind, Resource, SpecModel
from .names import API_VERSION, DnsLabel
from .quantity import Quantity


class QueueLimit(SpecModel):
    """The most a queue's running jobs may hold together. Absent: no limit of that kind."""

    gpus: int | None = Field(default=None, ge=0, le=1_000_000)
    """Whole GPUs."""
    cpu: Quantity | None = None
    """Cores."""
    memory: Quantity | None = None
    """Bytes, for example 2Ti."""


class QueueSpec(SpecModel):
    """Who may use the queue, and how much at a time."""

    limit: QueueLimit = QueueLimit()
    projects: Annotated[tuple[DnsLabel, ...], *DISTINCT] | None = Field(default=None, max_length=1024)
    """Who may submit here. Absent: every project."""
    highest_priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """The highest priority a job may ask for here. Absent: any."""
    reservation_budget: float = Field(default=0.25, ge=0, le=100)
    """Nodes are kept for a job that waits long until they stood idle for this share of its own GPU-hours of waiting.
    0: never."""


class Queue(Resource):
    """A queue of training jobs: what its jobs may hold together, and which projects may submit to it."""

    api_version: str = API_VERSION
    kind: str = "Queue"
    spec: QueueSpec = QueueSpec()


QUEUES = Kind(Queue, API_VERSION, "Queue", "queues", namespaced=False)
