"""Events wait for a store that is slow: what is written of them then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker.controller.recorder import Recorder
from stoker.life.step import Note
from stoker.spec.event import MESSAGE_MAX, Event, Subject
from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from stoker.store.clock import SystemClock


class SlowStore:
    """Takes events once it may."""

    def __init__(self) -> None:
        self.taken: list[Event] = []
        self.may = asyncio.Event()

    async def create(self, _kind: object, event: Event) -> Event:
        await self.may.wait()
        self.taken.append(event)
        return event


def about(name: str) -> Subject:
    return Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=Key("p", name), uid=f"uid-{name}")


async def written(*notes: tuple[str, Note]) -> list[tuple[str, str, str]]:
    """Of notes about jobs, recorded while the first of all is being written."""
    slow: Any = SlowStore()
    recorder = Recorder(slow, SystemClock())
    recorder.record_about(about("first"), Note("Placed", "placed"))
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(0.01)
    for name, note in notes:
        recorder.record_about(about(name), note)
    slow.may.set()
    async with asyncio.timeout(5):
        while not slow.taken or recorder._waiting:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert recorder.dropped == 0
    return [(one.involved_object.name, one.reason, one.message) for one in slow.taken[1:]]


RUNNING, DONE, LOST = Note("Running", "runs"), Note("Succeeded", "done"), Note("WorkerLost", "gone", warning=True)


@pytest.mark.parametrize(
    ("what", "notes", "expected"),
    [
        ("one alone", [("a", DONE)], [("a", "Succeeded", "done")]),
        (
            "the newest says what the others would have, in its own place",
            [("a", Note("Placed", "placed")), ("b", RUNNING), ("a", RUNNING), ("a", DONE)],
            [("b", "Running", "runs"), ("a", "Succeeded", "placed; runs; done")],
        ),
        ("one being written is done with", [("first", RUNNING)], [("first", "Running", "runs")]),
        (
            "warnings stand for themselves, and nothing before one is said after it",
            [("a", RUNNING), ("a", LOST), ("a", LOST), ("a", DONE)],
            [("a", "Running", "runs"), *2 * [("a", "WorkerLost", "gone")], ("a", "Succeeded", "done")],
        ),
        (
            "no message is cut",
            [("a", Note("Placed", "x" * MESSAGE_MAX)), ("a", DONE)],
            [("a", "Placed", "x" * MESSAGE_MAX), ("a", "Succeeded", "done")],
        ),
    ],
)
async def test_events_that_wait(what: str, notes: list[tuple[str, Note]], expected: list[tuple[str, str, str]]) -> None:
    assert await written(*notes) == expected, what
