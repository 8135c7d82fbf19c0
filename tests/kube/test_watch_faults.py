"""What a watch does when the API server, or the way to it, does something odd."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.kube.watch import WatchPatience
from stoker.spec.job import JOBS
from stoker.store.cache import WatchCache
from stoker.store.clock import SystemClock
from stoker.store.port import Gone, Unavailable, WatchType
from stoker.store.seam import Seam

from .fake_server import bookmark, error, event, job, kubeconfig, page, refuses, says, serving, streams

ADDED, MODIFIED, DELETED, BOOKMARK = WatchType.ADDED, WatchType.MODIFIED, WatchType.DELETED, WatchType.BOOKMARK
QUICK = WatchPatience(silence_s=0.3, pause_s=0.001)


@pytest.fixture
async def server():
    async with serving() as server:
        yield server


@pytest.fixture
async def store(server, tmp_path, request):
    """Of a parameter's patience."""
    clock = SystemClock()
    async with KubeClient.from_config(kubeconfig=kubeconfig(tmp_path, server.url, token="t"), clock=clock) as client:
        yield KubeStore(client, clock, patience=getattr(request, "param", QUICK), streaming_lists=False)


async def take(watch, count):
    async with asyncio.timeout(10):
        return [await anext(watch) for _ in range(count)]


async def test_a_stream_that_ends_is_resumed_where_it_was(server, store):
    server.answer(
        streams(event("ADDED", job("a", 5)), bookmark(9)),
        streams(event("MODIFIED", job("a", 11))),
        streams(then="hang"),
    )
    watch = store.watch(JOBS, since="3")
    events = await take(watch, 3)
    assert [(e.type, e.resource_version) for e in events] == [(ADDED, "5"), (BOOKMARK, "9"), (MODIFIED, "11")]
    with pytest.raises(Unavailable, match=r"not a byte.*dead"):
        await take(watch, 1)
    assert [asked.query["resourceVersion"] for asked in server.asked] == ["3", "9", "11"]
    assert all(asked.query["allowWatchBookmarks"] == "true" for asked in server.asked)
    assert all(300 <= int(asked.query["timeoutSeconds"]) <= 600 for asked in server.asked)


async def test_a_server_that_ends_each_watch_at_once_is_left_in_peace(server, store):
    server.answer(streams())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.5):
            await anext(store.watch(JOBS, since="3"))
    gaps = [after.at - before.at for before, after in itertools.pairwise(server.asked)]
    assert 2 <= len(server.asked) <= 8
    assert gaps[-1] > gaps[0]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (refuses(410, "Expired", "too old resource version"), Gone),
        (streams(error(410, "Expired", "too old resource version: 3 (7)")), Gone),
        (streams(error(500, "InternalError", "etcdserver: no leader")), Unavailable),
        (refuses(504, "Timeout", "Too large resource version: 9, current: 3"), Gone),
        (refuses(500, "InternalError", "boom"), Unavailable),
        (streams(b"<html>a proxy's page</html>\n"), Unavailable),
        (refuses(403, "Forbidden", 'User "x" cannot watch resource "trainingjobs"'), Unavailable),
        (refuses(404, "NotFound", "the server could not find the requested resource"), Unavailable),
    ],
    ids=["http 410", "error 410", "error 500", "version of the future", "http 500", "no event", "http 403", "no crd"],
)
async def test_what_cannot_be_resumed_is_raised(server, store, answer, what):
    server.answer(answer)
    with pytest.raises(what):
        await take(store.watch(JOBS, since="3"), 1)
    assert len(server.asked) == 1


async def test_events_before_an_error_are_handed_out_first(server, store):
    server.answer(streams(event("ADDED", job("a", 5)), error(410, "Expired")))
    watch = store.watch(JOBS, since="3")
    [first] = await take(watch, 1)
    assert first.object.metadata.name == "a"
    with pytest.raises(Gone):
        await anext(watch)


async def test_half_a_line_is_dropped_and_sent_again(server, store):
    whole = b'{"type":"ADDED","object":{"metadata":{"name":"b"'
    server.answer(
        streams(event("ADDED", job("a", 5)), whole, then="close"),
        streams(event("ADDED", job("b", 6))),
    )
    events = await take(store.watch(JOBS, since="3"), 2)
    assert [e.object.metadata.name for e in events] == ["a", "b"]
    assert server.asked[1].query["resourceVersion"] == "5"


async def test_a_cut_connection_is_unavailable(server, store):
    server.answer(streams(event("ADDED", job("a", 5)), b'{"type":', then="break"))
    watch = store.watch(JOBS, since="3")
    await take(watch, 1)
    with pytest.raises(Unavailable):
        await take(watch, 1)


async def test_pieces_of_lines_are_put_together(server, store):
    import json

    raw = json.dumps(event("ADDED", job("a", 5)), separators=(",", ":")).encode() + b"\n"
    third = len(raw) // 3
    server.answer(streams(raw[:third], raw[third : 2 * third], raw[2 * third :] + raw))
    events = await take(store.watch(JOBS, since="3"), 2)
    assert events[0].object == events[1].object


async def test_a_429_is_waited_out_as_asked(server, store):
    server.answer(refuses(429, "TooManyRequests", Retry_After="1"), streams(event("ADDED", job("a", 5))))
    cache = WatchCache(store, JOBS, clock=SystemClock(), backoff_s=(0.001, 0.01))
    with pytest.raises(Unavailable):
        await take(store.watch(JOBS, since="3"), 1)
    [event_] = await take(store.watch(JOBS, since="3"), 1)
    assert event_.object is not None and not cache.is_synced
    assert server.asked[1].at - server.asked[0].at >= 1.0


async def test_a_cache_backs_off_from_a_server_in_trouble(server, store):
    """The client library's own informer sent 67 requests in 3 s to such a server."""
    server.answer(says(page(job("a", 5), version=7)), refuses(500, "InternalError", "boom"))
    cache = WatchCache(store, JOBS, clock=SystemClock())
    running = asyncio.create_task(cache.run())
    await cache.synced()
    await asyncio.sleep(3)
    running.cancel()
    watches = [asked for asked in server.asked if "watch" in asked.query]
    gaps = [after.at - before.at for before, after in itertools.pairwise(watches)]
    assert 3 <= len(watches) <= 8 and gaps[-1] > 2 * gaps[0]
    assert all(asked.query["resourceVersion"] == "7" for asked in watches)


async def test_a_cache_relists_after_gone_and_delivers_the_difference(server, store):
    server.answer(
        says(page(job("a", 5), job("b", 6), version=7)),
        streams(event("ADDED", job("c", 8)), error(410, "Expired")),
        says(page(job("a", 9), job("c", 8), version=12)),
        streams(then="hang"),
    )
    cache, changes = WatchCache(store, JOBS, clock=SystemClock()), []
    cache.subscribe(lambda change: changes.append((change.key.name, change.old is not None, change.new is not None)))
    running = asyncio.create_task(cache.run())
    await cache.at_least("12", timeout_s=10)
    running.cancel()
    assert changes == [
        ("a", False, True),
        ("b", False, True),
        ("c", False, True),
        ("b", True, False),
        ("a", True, True),
    ]


@pytest.mark.parametrize("store", [WatchPatience()], indirect=True, ids=["patient"])  # making 8 MB can take 0.3 s
async def test_a_slow_reader_loses_nothing(server, store):
    """The server has more to say than any buffer holds, and hangs up; the reader takes its time."""
    count = 4000
    padding = {"env": {"PAD": "x" * 2000}}
    server.answer(
        streams(*(event("ADDED", job(f"j{n}", n, **padding)) for n in range(1, count + 1))), streams(then="hang")
    )
    watch = store.watch(JOBS, since="0")
    seen = []
    async with asyncio.timeout(60):
        while len(seen) < count:
            seen.append((await anext(watch)).resource_version)
            if len(seen) % 500 == 0:
                await asyncio.sleep(0.02)
    assert seen == [str(n) for n in range(1, count + 1)]


async def test_a_streaming_list_where_it_is_offered(server, tmp_path):
    clock = SystemClock()
    async with KubeClient.from_config(kubeconfig=kubeconfig(tmp_path, server.url), clock=clock) as client:
        store = KubeStore(client, clock, patience=QUICK)
        server.answer(
            streams(
                event("ADDED", job("a", 5)),
                event("ADDED", job("b", 6)),
                bookmark(9, **{"k8s.io/initial-events-end": "true"}),
                then="hang",
            ),
            streams(event("ADDED", job("a", 5)), then="close"),
            says(page(job("a", 5), job("b", 6), version=9)),
            refuses(422, "Invalid", "sendInitialEvents is forbidden"),
            says(page(job("a", 5), version=10, token="next")),
            says(page(job("b", 6), version=10)),
        )
        page1 = await store.snapshot(JOBS)
        assert [obj.metadata.name for obj in page1.items] == ["a", "b"] and page1.resource_version == "9"
        cut_off = await store.snapshot(JOBS)
        assert cut_off.items == page1.items and "sendInitialEvents" not in server.asked[-1].query
        page2 = await store.snapshot(JOBS)
        assert page2.items == page1.items and page2.resource_version == "10"
        assert server.asked[-1].query["continue"] == "next"


async def test_one_poison_object_hides_no_other(server, tmp_path):
    reported, clock = [], SystemClock()
    async with KubeClient.from_config(kubeconfig=kubeconfig(tmp_path, server.url), clock=clock) as client:
        store = KubeStore(client, clock, patience=QUICK, streaming_lists=False, on_unreadable=reported.append)
        server.answer(
            says(page(job("a", 5), job("bad", 6, workers=0), job("c", 7), version=9)),
            streams(
                event("MODIFIED", job("a", 10, workers=-1)),
                event("MODIFIED", job("bad", 11, surprise=1)),
                event("MODIFIED", job("bad", 12)),
                event("DELETED", job("c", 13, workers=0)),
            ),
            streams(then="hang"),
        )
        listed = await store.snapshot(JOBS)
        assert [obj.metadata.name for obj in listed.items] == ["a", "c"]
        assert [(p.key.name, p.uid, p.resource_version) for p in reported] == [("bad", "uid-bad", "6")]
        assert "workers" in reported[0].errors[0]
        events = await take(store.watch(JOBS, since="9"), 4)
        assert [(e.type, e.object.key.name) for e in events] == [
            (DELETED, "a"),
            (DELETED, "bad"),
            (ADDED, "bad"),
            (DELETED, "c"),
        ]
        assert [(p.key.name, p.resource_version) for p in reported[1:]] == [("a", "10"), ("bad", "11")]


async def test_the_seam_counts_each_connection(server, tmp_path):
    seam, clock = Seam.parse("fail kube.watch*:2"), SystemClock()
    async with KubeClient.from_config(kubeconfig=kubeconfig(tmp_path, server.url), clock=clock, seam=seam) as client:
        store = KubeStore(client, clock, patience=QUICK)
        server.answer(streams(event("ADDED", job("a", 5))))
        watch = store.watch(JOBS, since="3")
        await take(watch, 1)
        with pytest.raises(Unavailable, match="injected"):
            await take(watch, 1)
    assert seam.counts == {"kube.watch TrainingJob": 2}


async def test_a_watch_knows_how_long_the_server_has_been_silent(server, tmp_path):
    """Opening it is a word of the server's too: of some kinds it sends no bookmarks."""
    clock = Hands()
    server.answer(streams(event("ADDED", job("a", 5))), streams(then="hang"))
    async with KubeClient.from_config(kubeconfig=kubeconfig(tmp_path, server.url, token="t"), clock=clock) as client:
        watch = KubeStore(client, clock, patience=QUICK, streaming_lists=False).watch(JOBS, since="3")
        assert watch.silent_s() == float("inf")
        await take(watch, 1)
        assert watch.silent_s() == 0
        clock.ahead_s += 50
        assert watch.silent_s() == 50
        reading = asyncio.create_task(anext(watch))
        try:
            async with asyncio.timeout(10):
                while len(server.asked) < 2 or watch.silent_s():
                    await asyncio.sleep(0.001)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


class Hands(SystemClock):
    """Real sleep, time by hand."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return self.ahead_s
