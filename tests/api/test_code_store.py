"""Code on disk: whatever is sent, swept, killed or cut off, a bundle that a job names is whole, and nothing is torn."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.local.store import EmbeddedStore
from stoker.spec.job import JOBS, TrainingJob, TrainingJobSpec
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import ObjectMeta
from stoker.store.cache import WatchCache
from stoker.store.clock import ManualClock, SystemClock
from stoker_api.code.project import Missing, ProjectCode, Stored, unused
from stoker_api.code.quota import LEASE_S, CodeFull, CodeLimits, CodeQuota
from stoker_api.code.store import EVERY_S, CodeStore, keep_tidy, named_by
from stoker_api.code.upload import Files, Upload
from tests.support.examples import examples

from .code_folder import Folder, pack, sha, unpack

ONE = Folder({"a.py": b"a", "b.py": b"bb"})
TWO = Folder({"a.py": b"a", "c.py": b"ccc"})


async def send(code: CodeStore, data: bytes, project: str = "alpha", step: int = 1 << 20):
    async with code.receiving(project, gzip=False) as receiver:
        for at in range(0, len(data), step):
            await receiver.feed(data[at : at + step])
        return await receiver.finish()


async def store_all(code: CodeStore, folder: Folder) -> None:
    await send(code, folder.pack())
    assert await code.put("alpha", folder.digest, folder.manifest) == Stored(created=True)


# Limits.


async def test_limits_refuse_and_a_restart_counts_the_same(tmp_path):
    clock, size = SystemClock(), len(ONE.manifest.canonical())
    code = CodeStore(tmp_path, clock, CodeLimits(total=3 + size + 2))
    await store_all(code, ONE)
    assert code.total_bytes == 3 + size and code.bundles == 1
    with pytest.raises(CodeFull, match="limit of"):
        await send(code, pack([b"ccc"]))
    assert (await send(code, pack([b"cc", b"a"]))).known == 1, "what is here needs no room"
    with pytest.raises(CodeFull):
        await code.put("alpha", Folder({}).digest, Folder({}).manifest)
    again = CodeStore(tmp_path, clock)
    assert again.total_bytes == code.total_bytes == 3 + size + 2 and again.bundles == 1
    with pytest.raises(CodeFull, match="free on"):
        await send(CodeStore(tmp_path, clock, CodeLimits(min_free=1 << 60)), pack([b"d"]))
    with pytest.raises(ValueError, match="project"):
        await send(code, b"", project="../up")
    assert not (tmp_path.parent / "up").exists()


async def test_a_full_disk_takes_nothing_half(tmp_path, monkeypatch):
    code = CodeStore(tmp_path, SystemClock())
    await store_all(code, ONE)
    held = code.total_bytes

    def full(path):
        raise OSError(28, "No space left on device")

    for where in ("upload", "project"):
        monkeypatch.setattr(f"stoker_api.code.{where}.sync", full)
    with pytest.raises(CodeFull, match="No space"):
        await send(code, pack([b"new"]))
    with pytest.raises(CodeFull, match="No space"):
        await code.put("alpha", Folder({}).digest, Folder({}).manifest)
    assert code.total_bytes == held and code.bundles == 1
    assert list((tmp_path / "alpha" / "partial").iterdir()) == []
    monkeypatch.undo()
    assert (await send(code, pack([b"new"]))).stored == 1


# Crashes.


def whole(folder: Path) -> dict[str, bytes]:
    """All files that are held; fails on one that is not what its name says."""
    found = {path.name: path.read_bytes() for path in (folder / "alpha" / "files").rglob("*") if path.is_file()}
    assert all(sha(data) == name for name, data in found.items())
    return found


SENDER = """
import asyncio, hashlib, itertools, pathlib, sys
from stoker.store.clock import SystemClock
from stoker_api.code.store import CodeStore

async def main():
    code = CodeStore(pathlib.Path(sys.argv[1]), SystemClock())
    async with code.receiving("alpha", gzip=False) as receiver:
        for number in itertools.count():
            data = b"%d " % number * 20_000
            await receiver.feed(b"%s %d\\n" % (hashlib.sha256(data).hexdigest().encode(), len(data)) + data)
            if number == 50:
                print("going", flush=True)

asyncio.run(main())
"""


def test_a_killed_server_leaves_whole_files_only(tmp_path):
    running = subprocess.Popen([sys.executable, "-c", SENDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline() == b"going\n"
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=30)
    found = whole(tmp_path)
    assert found
    partial = tmp_path / "alpha" / "partial"
    (partial / "left").write_bytes(b"half")
    again = CodeStore(tmp_path, SystemClock())
    assert list(partial.iterdir()) == [], "leftovers go at the start"
    assert again.total_bytes == sum(map(len, found.values()))


@pytest.mark.parametrize("dies_in", ["sync", "place_file", "touch"])
async def test_whatever_step_is_the_last_the_next_process_goes_on(tmp_path, monkeypatch, dies_in):
    """A step that never returns is a killed process: what it left is opened by another."""
    first = CodeStore(tmp_path, SystemClock())

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    target = {
        "sync": "stoker_api.code.upload.sync",
        "place_file": "stoker_api.code.project.ProjectCode.place_file",
        "touch": "stoker_api.code.project.ProjectCode._set_time",
    }[dies_in]
    monkeypatch.setattr(target, die)
    monkeypatch.setattr("stoker_api.code.upload.Files.discard", lambda _: None)
    with pytest.raises(Killed):
        await send(first, ONE.pack())
    monkeypatch.undo()
    again = CodeStore(tmp_path, SystemClock())
    assert whole(tmp_path) == {} and again.total_bytes == 0
    assert isinstance(await again.put("alpha", ONE.digest, ONE.manifest), Missing)
    await store_all(again, ONE)


async def test_a_request_that_is_cut_off_leaves_nothing_half(tmp_path, monkeypatch):
    code = CodeStore(tmp_path, SystemClock())
    entered, go_on = threading.Event(), threading.Event()
    real = Files.end

    def slow(self: Files) -> None:
        entered.set()
        go_on.wait(10)
        real(self)

    monkeypatch.setattr(Files, "end", slow)
    sending = asyncio.create_task(send(code, pack([b"first"]) + b"0" * 64 + b" 9\nhalf"))
    await asyncio.to_thread(entered.wait, 10)
    sending.cancel()  # while a thread still works for it
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert whole(tmp_path) == {sha(b"first"): b"first"} and code.total_bytes == 5
    assert list((tmp_path / "alpha" / "partial").iterdir()) == []


# Garbage.

times = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 100), max_size=6)


@given(times, st.frozensets(st.sampled_from("abcdef")), st.floats(0, 200), st.floats(0, 100))
def test_garbage_is_unnamed_and_old(used_at, named, now_s, keep_s):
    gone = unused(used_at, named, now_s, keep_s)
    assert len(gone) == len(set(gone)) and not set(gone) & named
    assert {one for one in used_at if one not in named and used_at[one] + keep_s < now_s - 1e-6} <= set(gone)
    assert all(used_at[one] <= now_s - keep_s for one in gone)


KEEP_S = 3 * LEASE_S
FOLDERS = [
    Folder({f"{n}.py": b"%d" % n for n in range(6) if mask >> n & 1}) for mask in (0b1, 0b11, 0b110, 0b111000, 0b101010)
]
which = st.sampled_from(FOLDERS)


class Life(RuleBasedStateMachine):
    """Clients, jobs, the clock and sweeps in any order, others going on between a sweep's steps."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stoker-code-"))
        self.clock = ManualClock()
        self.room = CodeQuota(self.folder, CodeLimits())
        self.code = ProjectCode(self.folder / "alpha", self.room, self.clock)
        self.threads = ThreadPoolExecutor(1)
        self.jobs: list[Folder] = []
        self.reported: dict[str, float] = {}
        """What a client heard is here or sent: when."""

    def teardown(self) -> None:
        self.threads.shutdown()
        shutil.rmtree(self.folder)

    def _now(self) -> float:
        return self.clock.monotonic()

    @initialize(hours=st.sampled_from([0.5, 4]))
    def begin_with_all_of_them(self, hours: float) -> None:
        """After 4 hours a sweep has much to remove: most of what goes wrong does so in the middle of one."""
        for folder in FOLDERS:
            self.send_what_is_missing(folder)
            self.put(folder)
        self.clock.advance(hours * 3600)

    @rule(folder=which)
    def send_what_is_missing(self, folder: Folder) -> None:
        outcome = self.code.put(folder.digest, folder.manifest)
        missing = outcome.sha256s if isinstance(outcome, Missing) else ()
        self.reported |= {name: self._now() for name in folder.missing if name not in missing}
        upload = Upload(Files(self.code, self.room, self.threads), gzip=False)
        upload.feed(folder.pack(missing))
        upload.finish()
        self.reported |= {name: self._now() for name in missing}

    @rule(folder=which)
    def put(self, folder: Folder) -> None:
        outcome = self.code.put(folder.digest, folder.manifest)
        missing = outcome.sha256s if isinstance(outcome, Missing) else ()
        for name in missing:
            assert self._now() - self.reported.get(name, -2 * LEASE_S) >= LEASE_S, "a file's lease was broken"
        self.reported |= {name: self._now() for name in folder.missing if name not in missing}

    @rule(folder=which)
    def submit(self, folder: Folder) -> None:
        if self.code.find(folder.digest) is not None:
            self.jobs.append(folder)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def delete_a_job(self, data: st.DataObject) -> None:
        self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))

    @rule(hours=st.sampled_from([0.3, 0.9, 1.1, 4]))
    def wait(self, hours: float) -> None:
        self.clock.advance(hours * 3600)

    @rule(between=st.lists(st.tuples(which, st.sampled_from(["submit", "send_what_is_missing", "put"])), max_size=8))
    def sweep(self, between: list[tuple[Folder, str]]) -> None:
        """`between`: what others do, one thing after each of the sweep's steps."""
        todo = iter(between)
        for _ in self.code.sweep({folder.digest for folder in self.jobs}, KEEP_S):
            for folder, what in itertools.islice(todo, 1):
                getattr(self, what)(folder)

    @rule()
    def restart(self) -> None:
        self.room = CodeQuota(self.folder, CodeLimits())
        self.code = ProjectCode(self.folder / "alpha", self.room, self.clock)

    @invariant()
    def what_jobs_name_is_whole(self) -> None:
        for folder in self.jobs:
            found = self.code._path(folder.digest)
            assert found.exists(), "a bundle that a job names is gone"
            for name in folder.missing:
                assert sha((self.code.files / name[:2] / name).read_bytes()) == name

    @invariant()
    def the_account_is_right(self) -> None:
        held = [path for name in ("files", "bundles") for path in (self.folder / "alpha" / name).rglob("*")]
        assert self.room.held == sum(path.stat().st_size for path in held if path.is_file())


TestLife = Life.TestCase
TestLife.settings = examples(60, stateful_step_count=30)


@pytest.mark.parametrize("use", ["submitted", "sent again"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7, 8])
def test_what_is_used_in_the_middle_of_a_sweep_stays(tmp_path, steps, use):
    """Whatever the sweep has decided and not yet done."""
    clock, room = ManualClock(), CodeQuota(tmp_path, CodeLimits())
    code = ProjectCode(tmp_path / "alpha", room, clock)
    folders = [Folder({"same": b"same", str(n): b"%d" % n}) for n in range(3)]

    def sent(folder: Folder) -> None:
        with ThreadPoolExecutor(1) as threads:
            upload = Upload(Files(code, room, threads), gzip=False)
            missing = code.put(folder.digest, folder.manifest)
            upload.feed(folder.pack(missing.sha256s if isinstance(missing, Missing) else ()))
            upload.finish()
        assert isinstance(code.put(folder.digest, folder.manifest), Stored)

    for folder in folders:
        sent(folder)
    clock.advance(2 * KEEP_S)
    sweep = code.sweep(set(), KEEP_S)
    for _ in range(steps):
        next(sweep, None)
    used = [folder for folder in folders if use == "sent again" or code.find(folder.digest) is not None]
    if use == "sent again":
        for folder in used:
            sent(folder)
    for _ in sweep:
        pass
    assert all(code.find(folder.digest) is not None for folder in used)
    assert code.bundles == len(used)
    assert set(whole(tmp_path)) == {name for folder in used for name in folder.missing}
    assert ProjectCode(tmp_path / "alpha", again := CodeQuota(tmp_path, CodeLimits()), clock).bundles == len(used)
    assert again.held == room.held


def test_twins_are_held_and_counted_once(tmp_path):
    room = CodeQuota(tmp_path, CodeLimits())
    code = ProjectCode(tmp_path / "alpha", room, SystemClock())
    with ThreadPoolExecutor(1) as threads:
        twins = [Upload(Files(code, room, threads), gzip=False) for _ in range(2)]
        for twin in twins:
            twin.feed(pack([b"same"]))
        assert room.held == 8, "room for both, until one of them is first"
        taken = [twin.finish() for twin in twins]
    assert [(one.stored, one.known) for one in taken] == [(1, 0), (0, 1)]
    assert room.held == 4 and list((tmp_path / "alpha" / "partial").iterdir()) == []


async def test_what_is_unused_goes_and_what_is_shared_stays(tmp_path):
    clock = ManualClock()
    code = CodeStore(tmp_path, clock, CodeLimits(keep_s=KEEP_S))
    await store_all(code, ONE)
    await store_all(code, TWO)
    await send(code, pack([b"never named"]))
    clock.advance(LEASE_S - 1)
    assert await code.sweep({}) == 0, "its bundle may be on its way"
    clock.advance(2)
    assert await code.sweep({}) == len(b"never named")
    clock.advance(KEEP_S - LEASE_S - 10)
    assert await code.find("alpha", TWO.digest) is not None, "a use"
    clock.advance(20)
    assert await code.sweep({"beta": {ONE.digest}}) > 0, "another project's jobs name nothing here"
    assert await code.find("alpha", ONE.digest) is None
    assert set(whole(tmp_path).values()) == {b"a", b"ccc"}
    clock.advance(10 * KEEP_S)
    assert await code.sweep({"alpha": {TWO.digest}}) == 0
    assert await code.find("alpha", TWO.digest) is not None
    clock.advance(KEEP_S)
    await code.sweep({})
    assert whole(tmp_path) == {} and code.total_bytes == 0 and code.bundles == 0


async def test_the_keeper_sweeps_every_hour_and_knows_the_jobs(tmp_path):
    clock = ManualClock()
    code = CodeStore(tmp_path / "code", clock, CodeLimits(keep_s=KEEP_S))
    await store_all(code, ONE)
    await store_all(code, TWO)
    async with EmbeddedStore(tmp_path / "db", SystemClock()) as store:
        trainer = Trainer(command=("python",), code=TWO.digest)
        meta = ObjectMeta(name="one", namespace="alpha")
        await store.create(JOBS, TrainingJob(metadata=meta, spec=TrainingJobSpec(trainer=trainer)))
        jobs = WatchCache(store, JOBS, clock=SystemClock())
        tasks = [asyncio.create_task(keep_tidy(code, jobs, clock)), asyncio.create_task(jobs.run())]
        await clock.wait_for_sleepers(1)
        assert code.bundles == 2 and named_by(jobs.values()) == {"alpha": {TWO.digest}}
        for _ in range(int(KEEP_S / EVERY_S) + 2):
            clock.advance(EVERY_S)
            await clock.wait_for_sleepers(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert await code.find("alpha", ONE.digest) is None
    bundle = await code.find("alpha", TWO.digest)
    assert bundle is not None
    stream = b"".join([piece async for piece in code.pieces("alpha", bundle)])
    assert len(stream) == bundle.length and unpack(stream) == (TWO.digest, dict(TWO.files))


async def test_pieces_are_bounded_whatever_the_files_are(tmp_path):
    code = CodeStore(tmp_path, SystemClock())
    mixed = Folder({"large": os.urandom(1_000_000), **{f"small/{n}": b"%d" % n for n in range(2000)}})
    await store_all(code, mixed)
    bundle = await code.find("alpha", mixed.digest)
    sizes, stream = [], b""
    async for piece in code.pieces("alpha", bundle):
        sizes.append(len(piece))
        stream += piece
    assert unpack(stream)[1] == dict(mixed.files)
    assert max(sizes) <= 256 << 10 and len(sizes) < 20, "small files travel together, large ones apart"
