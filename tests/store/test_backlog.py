"""What must be written is tried again until it is, and nothing that comes meanwhile is lost."""

from __future__ import annotations

import asyncio

from stoker.store.backlog import AGAIN_S, Backlog
from stoker.store.clock import ManualClock


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_item_is_tried_again_until_it_is_done() -> None:
    clock, tried, answers = ManualClock(), list[str](), [False, True]
    backlog: Backlog[str, str] = Backlog(clock)

    async def see_to(item: str) -> bool:
        tried.append(item)
        return answers.pop(0)

    async with asyncio.TaskGroup() as group:
        running = group.create_task(backlog.run(see_to))
        backlog.put("a", "first")
        backlog.put("b", "gone")
        backlog.drop("b")
        await settle()
        assert tried == ["first"]
        clock.advance(AGAIN_S)
        await settle()
        assert tried == ["first", "first"]
        clock.advance(2 * AGAIN_S)
        await settle()
        assert len(tried) == 2
        running.cancel()


async def test_what_takes_an_items_place_while_it_is_seen_to_is_seen_to_as_well() -> None:
    clock, tried = ManualClock(), list[str]()
    backlog: Backlog[str, str] = Backlog(clock)

    async def see_to(item: str) -> bool:
        tried.append(item)
        if item == "old":
            backlog.put("a", "new")
        return True

    async with asyncio.TaskGroup() as group:
        running = group.create_task(backlog.run(see_to))
        backlog.put("a", "old")
        await settle()
        clock.advance(AGAIN_S)
        await settle()
        assert tried == ["old", "new"]
        running.cancel()
