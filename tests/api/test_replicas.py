"""Two api processes over one store: what holds across them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from stoker.spec.job import TrainingJob, TrainingJobSpec
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import ANNOTATION_IDEMPOTENCY_KEY, ANNOTATION_SUBMITTER
from stoker.store.cache import WatchCache
from stoker_api.app import create_app
from stoker_api.deps import event_cache, running_caches
from stoker_api.jobs.index import IdempotencyId, JobIndex

from .test_lists import Jobs


@contextlib.asynccontextmanager
async def replica(world: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Another api over the same store, with caches of its own."""
    old = world.deps
    own = {
        name: WatchCache(old.store, getattr(old, name)._kind, clock=old.clock)
        for name in ("jobs", "queues", "nodes", "pods", "runtimes", "other_pods")
        if getattr(old, name) is not None
    }
    deps = replace(old, **own, events=event_cache(old.store, old.clock))
    app = create_app(deps)
    async with running_caches(deps), app.state.services.running():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def test_one_key_makes_one_job_whichever_replica_is_asked(world, body):
    async with replica(world) as other:

        async def submit(client: httpx.AsyncClient, key: str, given: dict[str, Any]) -> httpx.Response:
            headers = {**world.auth(), "Idempotency-Key": key}
            return await client.post("/v1/projects/alpha/jobs", headers=headers, json=given)

        for number in range(10):
            first, second = body(f"a{number}"), body(f"b{number}")
            answers = await asyncio.gather(
                submit(world.client, f"two-names-{number}", first), submit(other, f"two-names-{number}", second)
            )
            made = [answer for answer in answers if answer.status_code == 201]
            refused = [answer for answer in answers if answer.status_code == 422]
            assert (len(made), len(refused)) == (1, 1), [answer.text for answer in answers]
            assert refused[0].json()["code"] == "IdempotencyKeyReused"
            assert made[0].json()["metadata"]["name"] in refused[0].json()["detail"]
            assert await world.names() == [f"alpha/{made[0].json()['metadata']['name']}"]
            again = await asyncio.gather(*(submit(one, f"twins-{number}", body()) for one in (world.client, other) * 3))
            assert {answer.status_code for answer in again} == {201}
            assert len({answer.json()["metadata"]["uid"] for answer in again}) == 1
            for answer in (made[0], again[0]):
                path = f"/v1/projects/alpha/jobs/{answer.json()['metadata']['name']}"
                assert (await world.call("DELETE", path)).status_code == 204


OWNED = IdempotencyId("p", "alice", "k")


def job(name: str, version: int) -> TrainingJob:
    annotations = {ANNOTATION_SUBMITTER: "alice", ANNOTATION_IDEMPOTENCY_KEY: "k"}
    meta = ObjectMeta(
        name=name, namespace="p", uid=f"uid-{name}", resource_version=str(version), annotations=annotations
    )
    return TrainingJob(metadata=meta, spec=TrainingJobSpec(trainer=Trainer(command=("x",))))


@pytest.mark.parametrize(
    ("says", "arrivals", "mine", "first"),
    [
        ("alone", [("a", 5)], ("a", 5), None),
        ("the watch brought another before", [("b", 4), ("a", 5)], ("a", 5), "b"),
        ("and has changed it since", [("b", 4), ("a", 5), ("b", 9)], ("a", 5), "b"),
        ("the watch brought another after", [("a", 5), ("b", 6)], ("a", 5), None),
        ("a list brought mine before the older", [("a", 5), ("b", 4)], ("a", 5), "b"),
        ("mine has not come yet: rather none than two", [("b", 9)], ("a", 5), "b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_was_first(says, arrivals, mine, first):
    jobs = Jobs()
    index = JobIndex(jobs)  # type: ignore[arg-type]
    for name, version in arrivals:
        jobs.put(job(name, version))
    found = index.before(job(*mine), OWNED)
    assert (found and found.metadata.name) == first
