"""Lists: order, filters, and cursors that neither double nor drop while jobs come, go and change."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.spec.job import AttemptEnd, Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import Key, ObjectMeta
from stoker.store.cache import Change
from stoker_api.jobs import lists
from stoker_api.jobs.index import Filter, JobIndex, place_of
from stoker_api.jobs.lists import (
    SORTS,
    Conditions,
    decode_cursor,
    encode_cursor,
    jobs_page,
    parse_selector,
    ran_s,
)
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


async def test_filters_and_pages_over_http(world):
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


NOW = START + timedelta(hours=1)
ALL = Filter(sees=lambda project: True)
ran = st.builds(
    lambda job, priority, began_s, ended_s: job.model_copy(
        update={
            "spec": job.spec.model_copy(update={"priority": priority, "gpus_per_worker": priority % 3}),
            "status": job.status.model_copy(
                update={
                    "started_at": START + timedelta(seconds=began_s) if began_s == 3 else None,
                    "attempts": ()
                    if began_s is None
                    else (AttemptEnd(number=1, started_at=START + timedelta(seconds=began_s), ended_at=NOW),),
                    "finished_at": None if ended_s is None else START + timedelta(seconds=ended_s),
                    "ran_s": float(ended_s or 0),
                }
            ),
        }
    ),
    jobs,
    st.integers(-2, 2),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
)
VALUES: dict[str, Any] = {
    "created": lambda job: job.metadata.creation_timestamp,
    "started": lambda job: max((end.started_at for end in job.status.attempts), default=None),
    "finished": lambda job: job.status.finished_at,
    "duration": lambda job: ran_s(job, NOW),
    "priority": lambda job: job.spec.priority,
    "gpus": lambda job: job.gpus,
    "name": lambda job: job.metadata.name,
}


@examples(100)
@given(found=st.lists(ran, max_size=25), sort=st.sampled_from(SORTS), limit=st.integers(1, 6))
async def test_every_order_is_walked_whole_and_jobs_without_the_value_come_last(found, sort, limit):
    cache = Jobs()
    index = JobIndex(cache)  # type: ignore[arg-type]
    for job in found:
        cache.put(job)
    walked, cursor = [], None
    while True:
        page, cursor = await jobs_page(index, ALL, Conditions(), sort=sort, cursor=cursor, limit=limit, now=NOW)
        assert len(page) <= limit and (cursor is None or len(page) == limit)
        walked += page
        if cursor is None:
            break
    assert {job.uid for job in walked} == {job.uid for job in cache.objects.values()} and len(walked) == len(
        cache.objects
    )
    values = [VALUES[sort.removeprefix("-")](job) for job in walked]
    known = [value for value in values if value is not None]
    assert values == [*known, *[None] * (len(values) - len(known))]
    assert known == sorted(known, reverse=sort.startswith("-"))


async def test_a_look_at_every_job_lets_others_go_between(monkeypatch):
    monkeypatch.setattr(lists, "_SLICE_S", 0.0)
    cache = Jobs()
    index = JobIndex(cache)  # type: ignore[arg-type]
    for number in range(1000):
        cache.put(make(f"job-{number}", "p", number, "default", Phase.QUEUED))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(others())
    for sort, conditions in (("name", Conditions()), ("-created", Conditions(text="no such"))):
        turns = 0
        await jobs_page(index, ALL, conditions, sort=sort, cursor=None, limit=5, now=NOW)
        assert turns >= 2
    other.cancel()


def test_labels_are_selected_as_kubectl_does():
    def met(text: str, **labels: str) -> bool:
        return all(one.met_by(labels) for one in parse_selector(text))

    assert met("team=nlp", team="nlp") and met("team==nlp", team="nlp") and not met("team=nlp", team="cv")
    assert met("team!=nlp", team="cv") and met("team!=nlp") and not met("team!=nlp", team="nlp")
    assert met("team", team="") and not met("team") and met("!team") and not met("!team", team="nlp")
    assert met("a=1, b", a="1", b="x") and not met("a=1,b", a="1")
    for bad in ("", "a=b=c", "!a=b", "a=b,", "-a", "a in (b)", ",".join("a" * 17)):
        with pytest.raises(ValueError, match="condition"):
            parse_selector(bad)


async def test_what_a_list_is_asked_for_over_http(world, body):
    plain = await world.job("plain")
    await world.status(plain, phase="Failed", message="exit 1: no such file")
    body = body("tagged", gpusPerWorker=1, gpu={"models": ["Tiny"]}, priority=0)
    body["metadata"]["labels"] = {"team": "nlp"}
    answer = await world.submit(**body)
    assert answer.status_code == 201, answer.text
    typed = await world.job("typed", gpusPerWorker=1)
    await world.status(typed, attempt=1, gpuType="tiny")
    other = await world.job("other", gpusPerWorker=1, gpu={"models": ["Tiny"]})
    await world.status(other, attempt=1, gpuType="a100")

    async def names(query: str) -> list[str]:
        answer = await world.call("GET", f"/v1/projects/alpha/jobs?{query}")
        assert answer.status_code == 200, answer.text
        return [item["metadata"]["name"] for item in answer.json()["items"]]

    user = (await world.call("GET", "/v1/whoami")).json()["name"]
    assert len(await names(f"user={quote(user)}")) == 4 and await names("user=nobody") == []
    assert set(await names("gpuType=TINY")) == {"typed", "tagged"} and await names("gpuType=a100") == ["other"]
    assert await names("label=team%3Dnlp") == ["tagged"] and len(await names("label=!team")) == 3
    assert await names("text=NO%20SUCH") == ["plain"] and await names("text=nlp") == ["tagged"]
    assert len(await names("since=1h")) == 4 and await names("since=2999-01-01") == []
    assert await names("sort=name") == ["other", "plain", "tagged", "typed"]
    assert await names("sort=-name&phase=Queued") == ["typed", "tagged", "other"]
    page = (await world.call("GET", "/v1/projects/alpha/jobs?sort=name&limit=3")).json()
    assert await names(f"sort=name&cursor={page['nextCursor']}") == ["typed"]
    for query, pointer in (
        ("sort=age", "/sort"),
        ("label=a%3Db%3Dc", "/label"),
        ("since=yesterday", "/since"),
        (f"sort=-name&cursor={page['nextCursor']}", "/cursor"),
        (f"cursor={page['nextCursor']}", "/cursor"),
        (f"sort=gpus&cursor={cursor_of(['gpus', 10**400, 'a', 'b'])}", "/cursor"),
        ("text=", "/text"),
    ):
        answer = await world.call("GET", f"/v1/projects/alpha/jobs?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text


def cursor_of(parts: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")
