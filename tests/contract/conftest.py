"""The stores the contract suite runs against, and small makers of objects.

A test gets a `store` and a `project` (a namespace of its own), and names cluster-scoped objects `unique(...)`, so the
suite may run against a store that holds other things. A new adapter joins by one entry in FACTORIES. On Kubernetes a
test may ask more of `store`: `bind`, for what a pod's deletion looks like once it has a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from stoker.local.store import EmbeddedStore
from stoker.spec.job import TrainingJob
from stoker.spec.meta import OwnerReference, Resource
from stoker.spec.names import LABEL_JOB_UID
from stoker.spec.pod import Pod
from stoker.spec.queue import Queue
from stoker.store.clock import SystemClock
from stoker.store.port import Store, WatchEvent

from .clusters import project_store

NewStore = Callable[[], AbstractAsyncContextManager[Store]]
_numbers = itertools.count()


def _embedded(request: pytest.FixtureRequest) -> NewStore:
    tmp_path: Path = request.getfixturevalue("tmp_path")

    @contextlib.asynccontextmanager
    async def new() -> AsyncIterator[Store]:
        async with EmbeddedStore(tmp_path / f"{next(_numbers)}.db", SystemClock()) as store:
            yield store

    return new


def _kubernetes(request: pytest.FixtureRequest) -> NewStore:
    cluster = request.getfixturevalue("control_plane")
    cluster.install_crds()
    return lambda: project_store(cluster)


FACTORIES = {"embedded": _embedded, "kubernetes": _kubernetes}


@pytest.fixture(params=sorted(FACTORIES))
def new_store(request: pytest.FixtureRequest) -> NewStore:
    return FACTORIES[request.param](request)


@pytest.fixture
async def store(new_store: NewStore) -> AsyncIterator[Store]:
    async with new_store() as store:
        yield store


@pytest.fixture
def is_cluster(request: pytest.FixtureRequest) -> bool:
    """For the few places where Kubernetes says the same with other words."""
    return bool(request.node.callspec.params["new_store"] == "kubernetes")


@pytest.fixture
def unique() -> Callable[[str], str]:
    return lambda stem: f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def project(unique: Callable[[str], str]) -> str:
    return unique("project")


class Make:
    """Objects as callers build them, not yet stored."""

    def job(self, project: str, name: str, *, priority: int = 0, **metadata: Any) -> TrainingJob:
        return TrainingJob.model_validate(
            {
                "metadata": {"name": name, "namespace": project, **metadata},
                "spec": {"priority": priority, "trainer": {"command": ["true"]}},
            }
        )

    def queue(self, name: str, **metadata: Any) -> Queue:
        return Queue.model_validate({"metadata": {"name": name, **metadata}})

    def pod(self, project: str, name: str, owner: Resource, **metadata: Any) -> Pod:
        ref = OwnerReference(api_version=owner.api_version, kind=owner.kind, name=owner.metadata.name, uid=owner.uid)
        labels = {LABEL_JOB_UID: owner.uid, **metadata.pop("labels", {})}
        return Pod.model_validate(
            {
                "metadata": {
                    "name": name,
                    "namespace": project,
                    "labels": labels,
                    "owner_references": [ref.model_dump()],
                    **metadata,
                },
                "spec": {"containers": [{"image": "busybox", "command": ["true"]}]},
            }
        )

    def changed(self, obj: Any, **metadata: Any) -> Any:
        """The object with some metadata replaced."""
        return obj.model_copy(update={"metadata": obj.metadata.model_copy(update=metadata)})

    def with_priority(self, job: TrainingJob, priority: int) -> TrainingJob:
        return job.model_copy(update={"spec": job.spec.model_copy(update={"priority": priority})})


@pytest.fixture
def make() -> Make:
    return Make()


class Reader:
    """Reads a watch with a time-out, and only what belongs to the test's project."""

    async def take(self, watch: AsyncIterator[WatchEvent[Any]], count: int, project: str = "") -> list[WatchEvent[Any]]:
        found: list[WatchEvent[Any]] = []
        async with asyncio.timeout(10):
            while len(found) < count:
                event = await anext(watch)
                if event.object is not None and project in ("", event.object.metadata.namespace):
                    found.append(event)
        return found


@pytest.fixture
def reader() -> Reader:
    return Reader()
