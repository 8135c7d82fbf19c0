"""What is decided is written a few at a turn: a newer event is looked at in between, however much was decided."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from stoker.controller.decided_writes import A_TURN, AT_ONCE, CLAIMS_AT_ONCE, DecidedWrites
from stoker.controller.scheduling import LOOK_S, ahead
from stoker.scheduler_feed import _PIECE
from stoker.spec.job import JOBS, Phase
from stoker.spec.meta import Key
from stoker.spec.reasons import Code
from stoker.why import reasons

if TYPE_CHECKING:
    from .conftest import World


class Turns:
    """What happens between two turns of the event loop: the most of it so far."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def happened(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    async def follow(self) -> None:
        while True:
            self.now = 0
            await asyncio.sleep(0)


@contextmanager
def followed() -> Iterator[Turns]:
    turns = Turns()
    task = asyncio.create_task(turns.follow())
    try:
        yield turns
    finally:
        task.cancel()


async def at_once(world: World, prefix: str, gpus: list[int]) -> None:
    """Jobs that the scheduler sees together, as those that come while a pass decides."""
    async with world.operator.feed._lock:
        for number, each in enumerate(gpus):
            await world.submit(f"{prefix}{number}", gpus_per_worker=each)
        await world.until(lambda: len(world.jobs) == len(gpus), "the watch")


async def test_a_batch_begins_in_order_a_few_at_a_turn_and_so_many_at_once() -> None:
    begun: list[int] = []
    answers = asyncio.Semaphore(0)
    ended = []
    writes = DecidedWrites(lambda: ended.append(len(writes)))
    with followed() as turns:

        async def write(number: int) -> None:
            turns.happened()
            begun.append(number)
            await answers.acquire()

        for number in range(3 * AT_ONCE):
            writes.add(lambda number=number: write(number))  # type: ignore[misc]
        assert not begun and len(writes) == 3 * AT_ONCE and not writes.eased.is_set()
        while len(begun) < AT_ONCE:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == list(range(AT_ONCE)), "no more before one has ended"
        for _ in range(2 * AT_ONCE + AT_ONCE // 2):
            answers.release()
        await writes.eased.wait()
        assert len(writes) == AT_ONCE // 2
        for _ in range(AT_ONCE // 2):
            answers.release()
        while len(writes):
            await asyncio.sleep(0)
        assert begun == list(range(3 * AT_ONCE)) and turns.most <= A_TURN
    assert len(ended) == 3 * AT_ONCE and writes.failure is None


async def test_what_was_decided_and_not_begun_never_begins_after_the_end() -> None:
    begun = []

    async def write() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    writes = DecidedWrites(lambda: None)
    for _ in range(A_TURN + 1):
        writes.add(write)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await writes.close()
    await asyncio.sleep(0)
    assert len(begun) <= A_TURN + 1 and len(writes) == 0


async def test_claims_begin_a_few_at_once_and_keep_no_start_waiting() -> None:
    begun: list[str] = []
    answers = asyncio.Semaphore(0)
    writes = DecidedWrites(lambda: None)

    async def write(name: str) -> None:
        begun.append(name)
        if name.startswith("claim"):
            await answers.acquire()

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    for number in range(3 * AT_ONCE):
        writes.add_claim(lambda number=number: write(f"claim-{number}"))  # type: ignore[misc]
    await settle()
    assert begun == [f"claim-{number}" for number in range(CLAIMS_AT_ONCE)]
    writes.add(lambda: write("start"))
    await settle()
    assert begun[-1] == "start" and len(writes) == 0, "as many more may be decided as if there were no claims"
    answers.release()
    await settle()
    assert begun[CLAIMS_AT_ONCE + 1 :] == [f"claim-{CLAIMS_AT_ONCE}"], "in order, as earlier ones end"
    await writes.close()
    await settle()
    assert len(begun) == CLAIMS_AT_ONCE + 2


async def test_beside_many_starts_a_fifth_are_claims() -> None:
    begun: list[str] = []
    writes = DecidedWrites(lambda: None)

    async def write(name: str) -> None:
        begun.append(name)
        await asyncio.Event().wait()

    for _ in range(AT_ONCE):
        writes.add(lambda: write("start"))
        writes.add_claim(lambda: write("claim"))
    for _ in range(AT_ONCE):
        await asyncio.sleep(0)
    assert begun.count("start") == AT_ONCE and begun.count("claim") == AT_ONCE // 4
    assert "claim" in begun[: 2 * A_TURN], "not only after them"
    await writes.close()


def test_less_is_decided_at_a_time_where_deciding_takes_long() -> None:
    assert ahead(AT_ONCE, 2 * LOOK_S) == AT_ONCE // 2 and ahead(16, 2 * LOOK_S) == 16
    assert ahead(64, LOOK_S / 2) == 128 and ahead(AT_ONCE, 0) == AT_ONCE


async def test_between_two_looks_at_what_is_newer_only_a_few_starts_are_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 starts decided in one pass, none answered: a job that comes now is decided on all the same."""
    patch_status, answer, held = world.store.patch_status, asyncio.Event(), set[str]()
    with followed() as turns:

        async def slow(kind: Any, key: Key, *args: Any, **options: Any) -> Any:
            if kind is JOBS and key.name.startswith("many") and not answer.is_set():
                turns.happened()
                held.add(key.name)
                await answer.wait()
            return await patch_status(kind, key, *args, **options)

        monkeypatch.setattr(world.store, "patch_status", slow)
        await world.node(gpus=201, cpu_milli=201_000)
        await at_once(world, "many-", [1] * 200)
        await world.until(lambda: len(held) == 200, "the starts to be decided")
        assert turns.most <= A_TURN
        await world.submit("newer", gpus_per_worker=1)
        await world.phase("newer", Phase.SUCCEEDED)
        assert world.operator.scheduling.starts == 1, "the others are being written still"
    answer.set()
    await world.until(lambda: world.operator.scheduling.starts == 201, "the others")


async def test_a_burst_is_taken_in_piece_by_piece(world: World) -> None:
    state = world.operator.feed.state
    observe = state.observe_job
    with followed() as turns:

        def observed(job: Any) -> None:
            turns.happened()
            observe(job)

        state.observe_job = observed  # type: ignore[method-assign]
        await at_once(world, "j", [1] * 2 * _PIECE)
        await world.until(lambda: len(state.entries) == 2 * _PIECE, "all to be taken in")
        assert 0 < turns.most <= _PIECE


async def test_reasons_are_worked_out_off_the_event_loop_once_for_each_class(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[tuple[int, Any]] = []
    blockers = reasons.blockers

    def counted(state: Any, entry: Any, now: Any, stoppable: Any) -> Any:
        worked_out.append((threading.get_ident(), (now, entry.request)))
        return blockers(state, entry, now, stoppable)

    monkeypatch.setattr(reasons, "blockers", counted)
    await at_once(world, "w", [1, 2] * 30)
    waits = lambda: sum(job.status.reason is Code.NO_CAPACITY for job in world.jobs.values())  # noqa: E731
    await world.until(lambda: waits() == 60, "their reasons")
    assert all(thread != threading.get_ident() for thread, _ in worked_out)
    assert len(worked_out) == len({look for _, look in worked_out}) < 60, "one a class and look"
