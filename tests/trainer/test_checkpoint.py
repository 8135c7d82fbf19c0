"""Checkpoint files: a torn one is never loaded, a zombie never publishes, old ones go only after new ones."""

from __future__ import annotations

import json
import shutil
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_trainer import checkpoint
from stoker_trainer.checkpoint import CheckpointFolder, Damaged, read
from stoker_trainer.errors import BadConfig, Superseded, TrainerError
from stoker_trainer.fence import Fence
from tests.support.examples import examples

pytestmark = pytest.mark.torch
STATE = bytes(range(256)) * 8


def folder(path, attempt=1, keep=2):
    return CheckpointFolder(path, Fence.claim(path, attempt), keep)


def newest(made):
    return next(made.newest_first(), None)


def test_the_newest_is_read_back(tmp_path):
    made = folder(tmp_path)
    for step in (5, 10, 9):
        made.publish(step, STATE + bytes([step]), {"worldSize": 2})
    saved = newest(made)
    assert (saved.step, saved.attempt, saved.state) == (10, 1, STATE + b"\x0a")
    assert saved.manifest["worldSize"] == 2


def test_an_empty_folder_has_none(tmp_path):
    assert newest(folder(tmp_path)) is None


def test_only_the_newest_are_kept(tmp_path):
    made = folder(tmp_path, keep=2)
    for step in range(5):
        made.publish(step, STATE, {})
    names = sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("step"))
    assert names == ["step-0000000003-a00000001", "step-0000000004-a00000001"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


def longer(path):
    path.write_bytes(path.read_bytes() + b"\0")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {"cut": cut, "empty": empty, "longer": longer, "flipped": flip, "missing": lambda p: p.unlink()}


@pytest.mark.parametrize("file", ["state.pt", "manifest.json"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_marked_and_the_one_before_taken(tmp_path, file, how):
    made = folder(tmp_path)
    made.publish(1, STATE, {})
    path = made.publish(2, STATE + b"new", {})
    DAMAGE[how](path / file)
    if (how, file) == ("longer", "manifest.json"):
        path.joinpath(file).write_bytes(path.joinpath(file).read_bytes()[:-1] + b"}")
    assert newest(made).step == 1
    assert path.with_name(path.name + ".bad").is_dir() and not path.exists()
    made.publish(3, STATE, {})
    assert newest(made).step == 3


@examples(150)
@given(data=st.data())
def test_no_flipped_bit_anywhere_goes_unseen(tmp_path_factory, data):
    base = tmp_path_factory.getbasetemp() / "flipped"
    if not base.exists():
        base.mkdir()
        folder(base).publish(7, STATE, {"worldSize": 1, "trajectory": {"recipe": "x"}})
    original = base / "step-0000000007-a00000001"
    good = read(original)
    copy = base / "copies" / original.name
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(original, copy)
    file = copy / data.draw(st.sampled_from(["state.pt", "manifest.json"]))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(bytes(content))
    try:
        found = read(copy)
    except Damaged:
        return
    # A flipped bit of white space is the one kind that may stay: then everything read is as it was.
    assert (found.step, found.manifest, found.state) == (good.step, good.manifest, good.state)


def test_a_checkpoint_under_another_name_is_refused(tmp_path):
    made = folder(tmp_path)
    path = made.publish(3, STATE, {})
    path.rename(path.with_name("step-0000000009-a00000001"))
    assert newest(made) is None


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    made = folder(tmp_path)
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    path = made.publish(3, STATE, {})
    monkeypatch.undo()
    with pytest.raises(BadConfig, match="format 99, and this trainer reads 1 to 3"):
        newest(made)
    assert path.is_dir()  # not set aside: the trainer that wrote it can go on


def test_a_failed_write_leaves_the_old_ones_and_no_rest(tmp_path, monkeypatch):
    made = folder(tmp_path, keep=1)
    made.publish(1, STATE, {})
    real = checkpoint.write_synced

    def full(path, data):
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_synced", full)
    with pytest.raises(OSError, match="No space"):
        made.publish(2, STATE, {})
    assert newest(made).step == 1
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_zombie_neither_publishes_nor_prunes_nor_marks(tmp_path):
    zombie = folder(tmp_path, attempt=1, keep=1)
    old = zombie.publish(10, STATE, {})
    heir = folder(tmp_path, attempt=2, keep=1)
    assert newest(heir).step == 10
    with pytest.raises(Superseded, match="attempt 2 has claimed"):
        zombie.publish(20, STATE, {})
    with pytest.raises(Superseded):
        zombie.mark_bad(old, "it says")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("step")] == [old.name]
    assert not list(tmp_path.glob(".tmp-*"))
    heir.publish(11, STATE, {})
    assert newest(heir).attempt == 2


def test_an_older_attempt_may_not_claim(tmp_path):
    Fence.claim(tmp_path, 4)
    with pytest.raises(Superseded):
        Fence.claim(tmp_path, 3)
    assert Fence.claim(tmp_path, 4).attempt == 4  # the same attempt, started again
    assert Fence.claim(tmp_path, None).attempt == 5  # by hand


def test_a_folder_that_cant_be_made_is_no_bad_config(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainerError, match="can't be written") as caught:
        Fence.claim(tmp_path / "file" / "checkpoints", 1)
    assert caught.value.exit_code == 1  # a full disk passes; the job may be tried again


def test_a_claim_waits_for_a_publication_that_is_under_way(tmp_path):
    old, order = Fence.claim(tmp_path, 1), []

    def take():
        Fence.claim(tmp_path, 2)
        order.append("claimed")

    with old.publishing():
        thread = threading.Thread(target=take)
        thread.start()
        thread.join(0.2)
        order.append("published")
    thread.join(10)
    assert order == ["published", "claimed"]
    with pytest.raises(Superseded), old.publishing():
        pass


def test_a_frozen_holder_is_passed_by(tmp_path):
    old = Fence.claim(tmp_path, 1)
    with old.publishing():
        assert Fence.claim(tmp_path, 2, lock_wait_s=0.05).attempt == 2


def test_what_dead_attempts_left_is_taken_away(tmp_path):
    left = tmp_path / ".tmp-a00000001-99-step-0000000005-a00000001"
    made = folder(tmp_path, attempt=2)
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    foreign = tmp_path / ".tmp-a00000003-99-step-0000000005-a00000003"
    foreign.mkdir()
    made.publish(6, STATE, {})
    assert not left.exists() and foreign.exists()


def test_the_manifest_is_for_people_too(tmp_path):
    path = folder(tmp_path).publish(6, STATE, {"worldSize": 2})
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["attempt"], manifest["files"]["state.pt"]["bytes"]) == (6, 1, len(STATE))
