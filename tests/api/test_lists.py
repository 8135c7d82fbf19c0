"""Lists: order, filters, and cursors that neither double nor drop while jobs come, go and change."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.job import Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Key, ObjectMeta
from stoker.store.cache import Change
from stoker_api.jobs.index import Filter, JobIndex, decode_cursor, encode_cursor, place_of
from tests.support.examples import examples

START = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = TrainingJobSpec(trainer=Trainer(command=("x",)))


def make(name: str, project: str, created_s: int, queue: str, phase: Phase) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(
            name=name,
            namespace=project,
            uid=f"{project}/{name}",
            creation_timestamp=START + timedelta(seconds=created_s),
        ),
        spec=SPEC.model_copy(update={"queue": queue}),
        status=TrainingJobStatus(phase=phase),
    )


class Jobs:
    """The part of a watch cache that the index uses."""

    def __init__(self) -> None:
        self.objects: dict[Key, TrainingJob] = {}
        self.handler: Any = None

    def subscribe(self, handler: Any) -> Any:
        self.handler = handler
        return lambda: None

    def get(self, key: Key) -> TrainingJob | None:
        return self.objects.get(key)

    def put(self, job: TrainingJob) -> None:
        old = self.objects.get(job.key)
        self.objects[job.key] = job
        self.handler(Change(old, job))

    def drop(self, key: Key) -> None:
        self.handler(Change(self.objects.pop(key), None))


jobs = st.builds(
    make,
    st.sampled_from("abcdefghij"),
    st.sampled_from(["p", "q"]),
    st.integers(0, 3),
    st.sampled_from(["default", "gold"]),
    st.sampled_from([Phase.QUEUED, Phase.RUNNING, Phase.FAILED]),
)
filters = st.builds(
    lambda project, queue, phases, seen: Filter(
        sees=lambda name: name in seen, project=project, queue=queue, phases=phases
    ),
    st.sampled_from([None, "p", "q"]),
    st.sampled_from([None, "default", "gold"]),
    st.none() | st.frozensets(st.sampled_from(list(Phase)), min_size=1),
    st.sampled_from([("p", "q"), ("p",)]),
)


@examples(150)
@given(
    before=st.lists(jobs, max_size=25),
    wanted=filters,
    limit=st.integers(1, 6),
    meanwhile=st.lists(st.lists(jobs | st.integers(0, 30), max_size=3), max_size=12),
)
def test_walking_pages_while_jobs_come_and_go(before, wanted, limit, meanwhile):
    cache = Jobs()
    index = JobIndex(cache)  # type: ignore[arg-type]
    for job in before:
        if job.key not in cache.objects:
            cache.put(job)
    steady = dict(cache.objects)
    after, met, changes, numbers = None, [], iter(meanwhile), itertools.count()
    while True:
        page, after = index.page(wanted, after=after, limit=limit)
        assert len(page) <= limit and (after is None or len(page) == limit)
        met += page
        if after is None:
            break
        after = decode_cursor(encode_cursor(after))
        for change in next(changes, ()):
            if isinstance(change, int):  # a job goes
                if cache.objects:
                    key = sorted(cache.objects)[change % len(cache.objects)]
                    cache.drop(key)
                    steady.pop(key, None)
            elif change.key not in cache.objects:  # a job comes, anywhere in the order; never one that has gone
                metadata = change.metadata.model_copy(update={"uid": f"new-{next(numbers)}"})
                cache.put(change.model_copy(update={"metadata": metadata}))
            else:  # a job changes its phase, but never its place
                old = cache.objects[change.key]
                cache.put(old.model_copy(update={"status": change.status}))
                steady.pop(change.key, None)
    uids = [job.uid for job in met]
    assert len(uids) == len(set(uids)), "doubled"
    fits = lambda job: (  # noqa: E731
        wanted.sees(job.metadata.namespace)
        and wanted.project in (None, job.metadata.namespace)
        and wanted.queue in (None, job.spec.queue)
        and (wanted.phases is None or job.status.phase in wanted.phases)
    )
    missed = [job.uid for job in steady.values() if fits(job) and job.uid not in uids]
    assert not missed
    assert [place_of(job) for job in met] == sorted(place_of(job) for job in met)


@examples(50)
@given(changes=st.lists(jobs | st.integers(0, 30), max_size=40))
def test_the_index_counts_what_there_is(changes):
    cache = Jobs()
    index = JobIndex(cache)  # type: ignore[arg-type]
    for change in changes:
        if isinstance(change, int):
            if cache.objects:
                cache.drop(sorted(cache.objects)[change % len(cache.objects)])
        else:
            old = cache.objects.get(change.key)
            cache.put(change if old is None else old.model_copy(update={"status": change.status}))
    counted = {key: count for key, count in index.counts().items() if count}
    expected: dict[tuple[str, str], int] = {}
    for job in cache.objects.values():
        key = (job.spec.queue, job.status.phase.value)
        expected[key] = expected.get(key, 0) + 1
    assert counted == expected


async def test_filters_and_pages_over_http(world, body):
    for number in range(7):
        await world.job(f"job-{number}", queue="small" if number % 2 else "default")
    failed = await world.job("done")
    await world.status(failed, phase="Failed")

    async def names(query: str) -> list[str]:
        answer = await world.call("GET", f"/v1/projects/alpha/jobs?{query}")
        assert answer.status_code == 200, answer.text
        return [item["metadata"]["name"] for item in answer.json()["items"]]

    assert set(await names("queue=small")) == {"job-1", "job-3", "job-5"}
    assert await names("phase=Failed,Cancelled") == ["done"]
    assert len(await names("phase=Queued&queue=default")) == 4
    walked, cursor = [], ""
    while cursor is not None:
        page = (await world.call("GET", f"/v1/projects/alpha/jobs?limit=3{cursor and '&cursor=' + cursor}")).json()
        walked += [item["metadata"]["name"] for item in page["items"]]
        cursor = page["nextCursor"]
    assert walked == await names("limit=500") and len(walked) == 8
