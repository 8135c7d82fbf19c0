"""Kept answers: what holds no more is forgotten, so that a flow of new keys takes no memory."""

from stoker.store.clock import ManualClock
from stoker.store.ttl_cache import TTLCache


async def answer(value: float) -> float:
    return value


async def test_only_answers_that_hold_are_kept():
    clock = ManualClock()
    cache: TTLCache[int, float] = TTLCache(clock, lambda keep_s: keep_s, most=50)
    for key in range(300):
        await cache.get(key, lambda key=key: answer(5.0 if key % 3 else 20.0))
        clock.advance(1.0)
        assert len(cache) <= 20, "one new answer a second, none of which holds longer than 20 s"
    assert await cache.get(297, lambda: answer(-1.0)) == 20.0, "of three keys this one holds longest"
    assert await cache.get(270, lambda: answer(-1.0)) == -1.0


async def test_there_are_never_more_than_the_most():
    cache: TTLCache[int, float] = TTLCache(ManualClock(), lambda keep_s: keep_s, most=50)
    for key in range(300):
        await cache.get(key, lambda: answer(20.0))
    assert len(cache) == 50
    assert await cache.get(299, lambda: answer(-1.0)) == 20.0
    assert await cache.get(249, lambda: answer(-1.0)) == -1.0
