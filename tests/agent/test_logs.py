"""Reading and following workers' logs."""

import asyncio
import time

from stoker.local.agent import WorkerLogs


async def follow(logs, uid):
    """The whole log, as a client that follows it sees it."""
    data = b""
    while True:
        chunk = await logs.read(uid, len(data), 1000)
        if chunk is not None:
            data += chunk.data
            if chunk.ended and len(data) == chunk.size:
                return data
            if chunk.data:
                continue
        await logs.wait_growth(uid, len(data), 5.0)


async def test_a_log_is_followed_to_its_end_by_many(node, datadir):
    logs = WorkerLogs(datadir)
    script = "for i in $(seq 200); do echo line $i; sleep 0.005; done"
    pod = await node.create("talks", ["sh", "-c", script])
    followers = [asyncio.create_task(follow(logs, pod.uid)) for _ in range(50)]
    expected = "".join(f"line {i}\n" for i in range(1, 201)).encode()
    assert set(await asyncio.gather(*followers)) == {expected}
    assert logs._followed == {}


async def test_parts_and_borders(node, datadir):
    logs = WorkerLogs(datadir)
    await node.create("short", ["printf", "0123456789"])
    uid = (await node.ended("short")).uid
    whole = await logs.read(uid, 0, 100)
    assert (whole.data, whole.size, whole.ended) == (b"0123456789", 10, True)
    assert (await logs.read(uid, 3, 4)).data == b"3456"
    assert (await logs.read(uid, 10, 4)).data == b""
    assert (await logs.read(uid, 99, 4)).data == b""


async def test_no_log_and_no_way_out_of_the_folder(node, datadir):
    logs = WorkerLogs(datadir)
    (datadir.path / "log").write_text("secret")
    for uid in ("unknown", "..", "../workers", "", "a/b", ".hidden"):
        assert await logs.read(uid, 0, 10) is None


async def test_waiting_ends_with_the_time_out_and_with_growth(node, datadir):
    logs = WorkerLogs(datadir)
    script = "echo up; while ! test -e go; do sleep 0.02; done; echo more; while ! test -e end; do sleep 0.02; done"
    await node.create("slow", ["sh", "-c", script])
    pod = await node.running("slow")
    await logs.wait_growth(pod.uid, 0, 10)
    began = time.monotonic()
    await logs.wait_growth(pod.uid, 3, 0.3)
    assert 0.25 < time.monotonic() - began < 2
    output = datadir.output("uid-of-slow")
    waiting = asyncio.create_task(logs.wait_growth(pod.uid, 3, 20))
    (output / "go").touch()
    await waiting
    assert (await logs.read(pod.uid, 3, 100)).data == b"more\n"
    (output / "end").touch()
    await logs.wait_growth(pod.uid, 8, 20)
    await node.ended("slow")
    assert (await logs.read(pod.uid, 8, 100)).ended
