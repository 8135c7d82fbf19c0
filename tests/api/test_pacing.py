"""What comes in a wave: a few in each round of the loop, probes of health before all."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from stoker_api import pacing
from stoker_api.middleware.limits import Starts
from stoker_api.pacing import Pacing, Rounds, UnderWay


@pytest.fixture
async def rests(monkeypatch):
    """What was to be called later, and after how long (s); nothing is, until the test does."""
    kept: list[tuple[float, object]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *later: kept.append(later))
    return kept


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_crowd_rests_between_its_rounds(rests):
    done: list[int] = []
    rounds = Rounds(2, rest_s=0.25)
    rounds.call(partial(done.append, 0))
    await turns(3)
    assert done == [0] and not rests, "who comes alone has no one to rest for"
    for number in range(1, 8):
        rounds.call(partial(done.append, number))
    for rested in (1, 2):
        await turns(10)
        assert len(done) == 1 + 2 + 2 * rested and len(rests) == 1
        after_s, go_on = rests.pop()
        assert after_s == 0.25
        go_on()
    await turns(10)
    assert done == list(range(8))
    rounds.call(partial(done.append, 8))
    assert done[-1] == 8


async def test_who_waits_no_more_has_no_turn(rests):
    rounds = Rounds(1, rest_s=0.25)
    tasks = [asyncio.create_task(rounds.turn()) for _ in range(100)]
    await turns(1)
    for task in tasks[2:-1]:
        task.cancel()
    await turns(5)
    rests.pop()[1]()
    await turns(5)
    assert tasks[-1].done()


async def test_a_crowd_waits_for_requests_under_way_but_not_for_long(rests, monkeypatch):
    loop, later_s = asyncio.get_running_loop(), 0.0
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s + later_s)
    under_way, done = UnderWay(), []
    rounds = Rounds(1, rest_s=0.25, under_way=under_way)

    async def after_the_rest():
        await turns(3)
        _, go_on, *given = rests.pop()
        go_on(*given)
        return len(done)

    with under_way.one():
        for number in range(8):
            rounds.call(partial(done.append, number))
        await turns(3)
        assert done == [0, 1] and await after_the_rest() == 2, "it looks again later"
        later_s += 0.003
        assert await after_the_rest() == 2
        later_s += 0.002
        assert await after_the_rest() == 3, "for 4 ms at most"
        assert await after_the_rest() == 3, "and then for the next turn anew"
    assert await after_the_rest() == 4, "the request is answered"
    with under_way.one():
        later_s += 0.06
        assert await after_the_rest() == 5, "one that waits itself is not waited for"
        with under_way.one():
            assert await after_the_rest() == 5


async def test_followers_wait_for_requests_under_way(rests, monkeypatch):
    monkeypatch.setattr(pacing, "_SLICE_S", 0.0)
    under_way, done = UnderWay(), []
    paced = Pacing(under_way)

    async def follow(number):
        async with paced:
            done.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(follow(number)) for number in range(3)]
    await turns(5)
    with under_way.one():
        for _ in range(2):
            _, go_on, *given = rests.pop()
            go_on(*given)
            await turns(5)
            assert done == [0]
    _, go_on, *given = rests.pop()
    go_on(*given)
    await turns(5)
    assert done == [0, 1]
    for task in tasks:
        task.cancel()


async def test_a_wave_of_requests_starts_a_few_at_a_time(monkeypatch):
    started: list[tuple[int, str]] = []
    rounds, rested = 0, 0
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def rest(*what):
        nonlocal rested
        rested += 1
        return later(*what)

    monkeypatch.setattr(loop, "call_later", rest)

    async def app(scope, _receive, _send):
        started.append((rounds, scope["path"]))

    under_way = UnderWay()
    starts = Starts(app, under_way)
    wave = ["/v1/queues", "/v1/projects/a/jobs/b/logs"] * 20 + ["/livez"]
    tasks = [asyncio.create_task(starts({"type": "http", "path": path}, None, None)) for path in wave]
    gone = tasks[10:20]
    while not all(task.done() for task in tasks):
        rounds += 1
        await asyncio.sleep(0)
        if rounds == 1:
            for task in gone:  # their peers went away: they hold up none behind them
                task.cancel()
    assert len(started) == len(wave) - len(gone)
    each = Counter((number, path) for number, path in started)
    assert each[1, "/livez"] == 1, "health never waits"
    assert max(Counter(number for number, path in started if path != "/livez").values()) <= 4
    assert max(count for (_, path), count in each.items() if path.endswith("/logs")) == 1
    assert rested >= 8, "ten streams, of which the first two come at once"
    others, streams = ([number for number, path in started if path.endswith(end)] for end in ("/queues", "/logs"))
    assert max(others) < max(streams), "others do not wait for streams"
