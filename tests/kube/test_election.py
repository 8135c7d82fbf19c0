"""Leader election on a real API server: never two at a time, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.controller.main import _Process
from stoker.kube.client import Call, KubeClient
from stoker.kube.lease import LeaderElection, Timing
from stoker.store.clock import SystemClock
from stoker.store.port import NotLeader

TIMING = Timing(lease_s=3.0, margin_s=1.0, renew_s=0.4, retry_s=0.2, stop_s=0.5)
PROGRAM = Path(__file__).with_name("election_process.py")


class Candidates:
    """Candidate processes, and what they said."""

    def __init__(self, kubeconfig: Path, namespace: str, file: Path) -> None:
        self._args = [str(kubeconfig), namespace]
        self._file = file
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, identity: str) -> None:
        self.processes[identity] = subprocess.Popen([sys.executable, PROGRAM, *self._args, identity, str(self._file)])

    def reported(self) -> list[dict[str, object]]:
        text = self._file.read_text() if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(self, who: str, what: str, *, after: float = 0.0, timeout_s: float = 30.0) -> float:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in self.reported():
                if line["who"] == who and line["what"] == what and line["at"] > after:
                    return line["at"]
            time.sleep(0.02)
        raise TimeoutError(f"{who} did not {what} within {timeout_s} s")

    def send(self, who: str, number: signal.Signals) -> float:
        """Returns: when, before whatever follows from it."""
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.kill(self.processes[who].pid, number)
        return at

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def candidates(control_plane, namespace, tmp_path):
    candidates = Candidates(control_plane.kubeconfig, namespace, tmp_path / "reports.jsonl")
    yield candidates
    candidates.stop()


def leaders_in_turn(control_plane, namespace):
    """Who wrote, term by term, once no write of a term is younger than one of a later term.

    In the order of the store's revisions: a candidate may hear only after its thaw of what it wrote before it froze.
    """
    terms = {}
    for lease in json.loads(control_plane.kubectl("get", "leases", "-n", namespace, "-o", "json"))["items"]:
        meta = lease["metadata"]
        if found := re.fullmatch(r"([ab])-(\d+)-\d+", meta["name"]):
            terms.setdefault((int(found[2]), found[1]), []).append(int(meta["resourceVersion"]))
    ordered = sorted(terms)
    for old, new in itertools.pairwise(ordered):
        assert max(terms[old]) < min(terms[new]), (old, new)
    return [who for _, who in ordered]


def test_a_killed_leader_is_followed(candidates, control_plane, namespace, record_property):
    candidates.start("a")
    candidates.until("a", "wrote")
    candidates.start("b")
    candidates.until("b", "ready")
    killed = candidates.send("a", signal.SIGKILL)
    took_s = candidates.until("b", "wrote") - killed
    record_property("failover_s", took_s)
    print(f"fail-over after kill -9: {took_s:.2f} s with a lease of {TIMING.lease_s} s")
    assert took_s >= TIMING.lease_s - TIMING.renew_s * 1.2 - 0.5
    assert leaders_in_turn(control_plane, namespace) == ["a", "b"]


def test_a_frozen_leader_never_writes_again(candidates, control_plane, namespace):
    candidates.start("a")
    candidates.until("a", "wrote")
    candidates.start("b")
    candidates.until("b", "ready")
    candidates.send("a", signal.SIGSTOP)
    candidates.until("b", "wrote")
    thawed = candidates.send("a", signal.SIGCONT)
    candidates.until("a", "end", after=thawed)
    assert leaders_in_turn(control_plane, namespace) == ["a", "b"]
    candidates.send("b", signal.SIGKILL)
    begun = candidates.until("a", "begin", after=thawed)  # it stands for election again
    candidates.until("a", "wrote", after=begun)
    assert leaders_in_turn(control_plane, namespace) == ["a", "b", "a"]


def election(client, namespace, identity, clock=None, **timing):
    return LeaderElection(
        client, clock or SystemClock(), namespace=namespace, identity=identity, timing=Timing(**(_FAST | timing))
    )


_FAST = {"lease_s": 3.0, "margin_s": 1.0, "renew_s": 0.3, "retry_s": 0.1, "stop_s": 0.5}


async def test_a_clean_end_hands_over_at_once(client, namespace):
    first, second = election(client, namespace, "a"), election(client, namespace, "b")
    leads = {one.identity: asyncio.Event() for one in (first, second)}
    running = {}
    for one in (first, second):

        async def work(one=one):
            leads[one.identity].set()
            await asyncio.Event().wait()

        running[one.identity] = asyncio.create_task(one.run(work))
        if one is first:
            async with asyncio.timeout(10):
                await leads["a"].wait()
    await asyncio.sleep(0.5)
    assert first.is_leader and not second.is_leader and not leads["b"].is_set()
    began = time.monotonic()
    running["a"].cancel()
    async with asyncio.timeout(10):
        await leads["b"].wait()
    print(f"hand-over after a clean end: {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 1.5
    assert not first.is_leader and second.transitions == first.transitions + 1
    with pytest.raises(NotLeader):
        first.check()
    running["b"].cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)


async def test_a_renewal_that_was_cut_off_but_done_does_not_keep_the_lease_from_being_released(client, namespace):
    one, leads = election(client, namespace, "a", renew_s=60.0), asyncio.Event()

    async def work():
        leads.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(one.run(work))
    async with asyncio.timeout(10):
        await leads.wait()
    await one._write()  # its answer is lost
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await one._object.read()).spec.holder_identity == ""


async def test_the_lease_is_written_as_kubernetes_has_it(client, namespace, control_plane, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        one = election(client, namespace, "a")

        async def work():
            pass

        async with asyncio.timeout(10):
            assert await one._try()
        lease = json.loads(control_plane.kubectl("get", "lease", "stoker-operator", "-n", namespace, "-o", "json"))[
            "spec"
        ]
    finally:
        monkeypatch.undo()
        time.tzset()
    from datetime import UTC, datetime

    assert lease["holderIdentity"] == "a" and lease["leaseDurationSeconds"] == 3
    assert abs((datetime.fromisoformat(lease["renewTime"]) - datetime.now(UTC)).total_seconds()) < 10


async def test_the_wall_clock_of_the_holder_does_not_count(client, namespace):
    """A lease said to be renewed years ago, or ahead, is waited for all the same: from when it was seen."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    for name, at in (("past", "2001-01-01T00:00:00.000000Z"), ("ahead", "2101-01-01T00:00:00.000000Z")):
        spec = {"holderIdentity": "x", "leaseDurationSeconds": 1, "renewTime": at, "acquireTime": at}
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec
        }  # fmt: skip
        await client.request(Call("create", "Lease"), "POST", path, body=json.dumps(body).encode())
        one = LeaderElection(
            client, SystemClock(), namespace=namespace, identity="a", name=name, timing=Timing(**_FAST)
        )
        began = time.monotonic()
        async with asyncio.timeout(20):
            while not await one._try():
                await asyncio.sleep(0.05)
        assert 2.9 <= time.monotonic() - began < 5


async def test_work_is_stopped_before_others_may_start(control_plane, namespace, tmp_path):
    """The API server falls silent for the leader: it stops within the lease, whatever error each renewal met."""
    from .fake_server import kubeconfig, refuses, says, serving

    async with serving() as server:
        meta = {"name": "stoker-operator", "uid": "u", "resourceVersion": "5"}
        held = {"metadata": meta, "spec": {"holderIdentity": "a", "leaseTransitions": 1}}
        server.answer(says({"metadata": meta, "spec": {}}), says(held), says(held), refuses(500, "InternalError"))
        config = kubeconfig(tmp_path, server.url)
        async with KubeClient.from_config(kubeconfig=config, clock=SystemClock()) as client:
            one = election(client, "p", "a")
            times = {}

            async def work():
                times["begin"] = time.monotonic()
                try:
                    await asyncio.Event().wait()
                finally:
                    times["end"] = time.monotonic()
                    with pytest.raises(NotLeader):
                        one.check()

            running = asyncio.create_task(one.run(work))
            async with asyncio.timeout(20):
                while "end" not in times:
                    await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert 1.5 < times["end"] - times["begin"] < TIMING.lease_s


async def test_what_the_work_raises_is_raised(client, namespace):
    one = election(client, namespace, "a")

    async def work():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with asyncio.timeout(10):
            await one.run(work)
    assert not one.is_leader


async def test_what_lost_work_had_in_memory_is_freed(client, control_plane, namespace):
    one, began = election(client, namespace, "a"), asyncio.Event()
    held = weakref.WeakSet()

    class World:
        pass

    async def work():
        world = World()
        world.itself = world
        held.add(world)
        began.set()
        await asyncio.Event().wait()

    gc.collect()
    gc.disable()
    running = asyncio.create_task(one.run(work))
    try:
        async with asyncio.timeout(20):
            await began.wait()
            await asyncio.to_thread(taken_by_b, control_plane, namespace)
            while held:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def taken_by_b(control_plane, namespace):
    taken = json.dumps({"spec": {"holderIdentity": "b"}})
    control_plane.kubectl("patch", "lease", "stoker-operator", "-n", namespace, "--type=merge", "-p", taken)


@pytest.mark.parametrize(("lost", "exit_code"), [(True, 1), (False, 0)], ids=["the lease is lost", "a signal"])
async def test_work_that_will_not_stop_ends_the_process(client, control_plane, namespace, caplog, lost, exit_code):
    one = election(client, namespace, "a", stop_s=0.1)
    began, stubborn = asyncio.Event(), asyncio.Event()

    async def work():
        began.set()
        while not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue

    process = _Process(cast(Any, None))
    running = asyncio.create_task(process._lead(one, work, {}))
    async with asyncio.timeout(20):
        await began.wait()
        if lost:
            await asyncio.to_thread(taken_by_b, control_plane, namespace)
        else:
            running.cancel()
        await running
    assert process._exit_code == exit_code
    assert f"exit {exit_code}" in caplog.text and "Traceback" not in caplog.text
    with pytest.raises(NotLeader):
        one.check()
    stubborn.set()
