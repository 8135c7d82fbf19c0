"""A list of jobs followed: all of the page first, then what changes of it, in both modes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker_api.streams import job_lists
from stoker_api.streams.followers import Followers

JOBS = "/v1/projects/alpha/jobs"


def names(frame: Any) -> list[str]:
    return [job["metadata"]["name"] for job in frame.json["items"]]


async def test_the_page_then_what_has_changed_of_it(served, follow):
    one, two = await served.job("one"), await served.job("two")
    frames = follow(served, f"{JOBS}?limit=2&sort=name")
    first = await anext(frames)
    assert (first.event, names(first), first.json["order"]) == ("jobs", ["one", "two"], [one.uid, two.uid])
    assert first.json["nextCursor"] is None
    await served.status(two, phase="Running", attempt=1)
    changed = await anext(frames)
    assert names(changed) == ["two"] and changed.json["items"][0]["status"]["phase"] == "Running"
    assert changed.json["order"] == [one.uid, two.uid]
    before = await served.job("aaa")
    moved = await anext(frames)
    assert names(moved) == ["aaa"] and moved.json["order"] == [before.uid, one.uid] and moved.json["nextCursor"]
    await served.call("DELETE", f"{JOBS}/aaa")
    back = await anext(frames)
    assert names(back) == ["two"] and back.json["order"] == [one.uid, two.uid]


async def test_conditions_hold_and_others_jobs_are_not_seen(served, follow, body):
    frames = follow(served, "/v1/projects/-/jobs?phase=Running")
    assert (await anext(frames)).json == {"items": [], "order": [], "nextCursor": None}
    others = await served.submit(**body("theirs"), project="beta", who="bob")
    await served.status(await served.job("mine"), phase="Running", attempt=1)
    assert names(await anext(frames)) == ["mine"], others.text
    refused = await served.call("GET", f"{JOBS}?cursor=nonsense", headers={"Accept": "text/event-stream"})
    assert refused.status_code == 422
    assert (await served.call("GET", JOBS, who="bob", headers={"Accept": "text/event-stream"})).status_code == 404


@pytest.mark.parametrize("new_world", ["embedded"], indirect=True)
async def test_live_progress_is_news_and_nothing_new_is_a_heartbeat(served, follow):
    job = await served.status(await served.job("one"), phase="Running", attempt=1)
    pod = await served.pod(job)
    frames = follow(served, JOBS)
    await anext(frames)
    said = {
        "podUid": pod.uid, "jobUid": job.uid, "project": "alpha", "jobName": "one", "attempt": 1, "worker": 0,
        "progress": {"step": 7, "at": served.deps.clock.now().timestamp()},
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {await served.worker_token(pod)}"}
    assert (await served.client.post("/v1/report/progress", headers=headers, json=said)).status_code == 204
    assert (await anext(frames)).json["items"][0]["status"]["progress"]["step"] == 7
    async with served.client.stream("GET", JOBS, headers={**served.auth(), "Accept": "text/event-stream"}) as answer:
        async for line in answer.aiter_lines():
            if line == ": still here":
                break
    assert len(served.services.followers) > 0


async def test_lists_that_look_at_all_jobs_take_turns(monkeypatch):
    """A second one begins when the first has rested for four times what it took."""
    clock = iter((0.0, 0.05, 1.0, 1.0))
    monkeypatch.setattr(job_lists.time, "thread_time", lambda: next(clock))
    lists = job_lists.JobLists(None, None, None, None)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with lists._turn(True):
        pass
    async with lists._turn(True):
        assert loop.time() - begun >= 0.19


class _Nothing:
    def subscribe(self, _handler: Any) -> Any:
        return lambda: None


def test_only_jobs_and_their_progress_wake_a_list():
    followers = Followers(_Nothing(), _Nothing(), _Nothing())  # type: ignore[arg-type]
    with followers.follow_all() as of_all, followers.follow("uid") as of_one:
        followers._wake_job("uid")
        assert of_one._woken.is_set() and not of_all._woken.is_set()
        followers.wake("other")
        assert of_all._woken.is_set()
    assert len(followers) == 0
