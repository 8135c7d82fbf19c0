"""Cutting logs into lines, and resuming after a cut at any byte of the stream."""

from __future__ import annotations

import asyncio
import re

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker_api.streams.line_cutter import LONGEST_LINE, LineCutter
from stoker_api.streams.sse import frame
from tests.support.examples import examples

LOGS = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", b"\xc3\xa9", b"\xff", b"", b": x", b"data: "]), max_size=40
)


def lines_of(data: bytes) -> list[str]:
    """What a reader of the whole log calls its lines."""
    found = re.split(r"\r\n|\r|\n", data.decode("utf-8", "replace"))
    return found[:-1] if found[-1] == "" else found


def through(pieces: list[bytes], offset: int = 0) -> list[tuple[str, int]]:
    cutter = LineCutter(offset)
    found = [lines for piece in pieces for lines in cutter.feed(piece)]
    return [(lines.text, lines.end) for lines in [*found, *cutter.flush()]]


@examples(250)
@given(LOGS, st.data())
def test_however_it_arrives_the_lines_are_the_same(parts, data):
    log = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    pieces = [log[a:b] for a, b in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    texts = through(pieces)
    assert [line for text, _ in texts for line in re.split(r"\r\n|\r|\n", text)] == lines_of(log)
    assert [end for _, end in texts][-1:] in ([], [len(log)])


@examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LOGS, st.data())
def test_resuming_after_a_cut_at_any_byte_loses_and_doubles_nothing(frames, parts, data):
    log = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    got: list[str] = []
    offset = 0
    for _ in range(4):
        rest = log[offset:]
        own = [cut - offset for cut in cuts if cut > offset]
        pieces = [rest[a:b] for a, b in zip([0, *own], [*own, len(rest)], strict=True)]
        wire = b"".join(frame("log", text, event_id=f"1.{end}") for text, end in through(pieces, offset))
        wire = wire[: data.draw(st.integers(0, len(wire)))]
        for met in frames(wire.decode("utf-8", "ignore")):
            got += met.data.split("\n")
            offset = int(met.id.partition(".")[2])
    got += [line for text, _ in through([log[offset:]], offset) for line in re.split(r"\r\n|\r|\n", text)]
    assert got == lines_of(log)


def test_endless_lines_come_in_pieces_of_whole_characters():
    log = ("é" * LONGEST_LINE).encode() + b"\nend\n"
    texts = through([log[at : at + 1000] for at in range(0, len(log), 1000)])
    assert "".join(text for text, _ in texts).replace("\n", "") == "é" * LONGEST_LINE + "end"
    assert len(texts) >= 2
    assert all("\ufffd" not in text for text, _ in texts)
    assert texts[-1][1] == len(log)


async def test_a_cut_connection_is_resumed_exactly(served, frames):
    """Numbered lines, the connection cut after any number of bytes, many times."""
    job = await served.status(await served.job("one"), phase="Running", attempt=1)
    pod = await served.pod(job)
    written = [f"line {number} {'x' * (number % 97)}" for number in range(3000)]

    async def write() -> None:
        for begin in range(0, len(written), 100):
            await served.logs.append(pod.uid, "".join(line + "\n" for line in written[begin : begin + 100]).encode())
            await asyncio.sleep(0)
        await served.logs.append(pod.uid, b"", end=True)
        await served.status(job, phase="Succeeded")

    writer = asyncio.create_task(write())
    got: list[str] = []
    last_id, ended, budget = None, False, 1
    async with asyncio.timeout(60):
        while not ended:
            headers = {
                **served.auth(),
                "Accept": "text/event-stream",
                **({"Last-Event-ID": last_id} if last_id else {}),
            }
            held, budget = b"", budget * 3 % 200_003 + 7
            async with served.client.stream(
                "GET", "/v1/projects/alpha/jobs/one/logs?follow=true", headers=headers
            ) as answer:
                async for part in answer.aiter_bytes(1024):
                    held += part
                    if len(held) >= budget:
                        break
            for met in frames(held[:budget].decode("utf-8", "ignore")):
                if met.event == "log":
                    got += met.data.split("\n")
                    last_id = met.id
                ended = ended or met.event == "end"
    await writer
    assert got == written
