"""Queue: who may use how much at a time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .meta import Kind, Resource, SpecModel
from .names import API_VERSION, DnsLabel
from .quantity import Quantity


class QueueLimit(SpecModel):
    """The most a queue's running jobs may hold together. Absent: no limit of that kind."""

    gpus: int | None = Field(default=None, ge=0)
    cpu: Quantity | None = None
    memory: Quantity | None = None


class QueueSpec(SpecModel):
    limit: QueueLimit = QueueLimit()
    projects: tuple[DnsLabel, ...] | None = Field(default=None, max_length=1024)
    """Who may submit here. Absent: every project."""
    highest_priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """The highest priority a job may ask for here. Absent: any."""


class Queue(Resource):
    api_version: str = API_VERSION
    kind: str = "Queue"
    spec: QueueSpec = QueueSpec()


QUEUES = Kind(Queue, API_VERSION, "Queue", "queues", namespaced=False)
