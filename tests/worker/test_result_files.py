"""Listing and opening of a job's files: by path, within the folders, whatever lies there."""

import os
import threading
import time

import pytest

from stoker_worker import result_files
from stoker_worker.result_files import NoSuchFile, ResultFiles


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "output"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"model")
    (folder / "runs" / "one").mkdir(parents=True)
    (folder / "runs" / "one" / "log").write_bytes(b"log")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    return folder


def paths(files, folder=""):
    return [one.path for one in files.listing(folder).files]


def content(files, path):
    fd, found = files.open(path)
    with os.fdopen(fd, "rb") as file:
        data = file.read()
    assert len(data) == found.st_size
    return data


def test_files_are_listed_and_opened_by_path(output):
    files = ResultFiles(str(output))
    assert paths(files) == ["model.pt", "runs/one/log"] and paths(files, "runs/") == ["runs/one/log"]
    assert content(files, "model.pt") == b"model" and content(files, "./runs//one/log") == b"log"
    assert files.listing("", 1).truncated and not files.listing().truncated
    for path, why in (
        ("runs", "is a folder"),
        ("no", "there is no file"),
        ("", "name a file"),
        ("model.pt/x", "no file"),
    ):
        with pytest.raises(NoSuchFile, match=why):
            files.open(path)
    with pytest.raises(NoSuchFile, match="no folder"):
        files.listing("model.pt")


@pytest.mark.parametrize("path", ["../secret", "runs/../../secret", "..", "a\0b", "x/" * 70 + "y", "a" * 5000])
def test_a_path_that_is_none_within_is_refused(output, path):
    for call in (ResultFiles(str(output)).open, ResultFiles(str(output)).listing):
        with pytest.raises(NoSuchFile, match="is no path within"):
            call(path)


def test_no_link_leads_out(output, tmp_path):
    (output / "file").symlink_to(tmp_path / "secret")
    (output / "up").symlink_to("../secrets")
    (output / "runs" / "inside").symlink_to("one")
    files = ResultFiles(str(output))
    assert {one.path: one.kind for one in files.listing().files if one.kind != "file"} == {
        "file": "link", "up": "link", "runs/inside": "link",
    }  # fmt: skip
    for path in ("file", "up", "up/key", "/secret", str(tmp_path / "secret"), "runs/inside/log"):
        with pytest.raises(NoSuchFile):
            files.open(path)
    for folder in ("up", "runs/inside", "file"):
        with pytest.raises(NoSuchFile):
            files.listing(folder)
    moved = tmp_path / "moved"
    output.rename(moved)
    output.symlink_to(tmp_path / "secrets")
    with pytest.raises((NoSuchFile, OSError)):
        files.open("key")
    with pytest.raises(OSError):
        files.listing()


def test_a_folder_that_is_swapped_for_a_link_all_the_time_gives_no_secret_away(output, tmp_path):
    (output / "swap").mkdir()
    (output / "swap" / "key").write_text("mine")
    over = threading.Event()

    def swap():
        while not over.is_set():
            os.rename(output / "swap", output / "aside")
            os.symlink(tmp_path / "secrets", output / "swap")
            os.unlink(output / "swap")
            os.rename(output / "aside", output / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        files, begin_s = ResultFiles(str(output)), time.monotonic()
        while (tried_s := time.monotonic() - begin_s) < 1.5 or (not seen and tried_s < 60):
            try:
                seen.add(content(files, "swap/key"))
            except (NoSuchFile, OSError):
                continue
    finally:
        over.set()
        thread.join()
    assert seen == {b"mine"}


def test_pipes_and_sockets_are_left_alone(output):
    os.mkfifo(output / "pipe")
    files = ResultFiles(str(output))
    assert "pipe" not in paths(files)
    with pytest.raises(NoSuchFile, match="no regular file"):
        files.open("pipe")


def test_names_that_are_no_text_are_left_out(output):
    (output / os.fsdecode(b"\xff\xfe")).touch()
    (output / "tab\tand \x1b[2J").touch()
    assert paths(ResultFiles(str(output))) == ["model.pt", "runs/one/log", "tab\tand \x1b[2J"]


def test_endless_folders_end(output, monkeypatch):
    monkeypatch.setattr(result_files, "MOST_LOOKED_AT", 50)
    for number in range(60):
        (output / f"{number}").touch()
    deep = output
    for _ in range(100):
        deep = deep / "d"
        deep.mkdir()
    (deep / "file").touch()
    found = ResultFiles(str(output)).listing()
    assert found.truncated and len(found.files) < 50


@pytest.fixture
def code(tmp_path):
    """A worker's copy of its code, to which the command has added something."""
    folder = tmp_path / "worker" / "code"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("shipped")
    (tmp_path / "worker" / "code-complete").touch()
    time.sleep(0.02)
    (folder / "runs").mkdir()
    (folder / "runs" / "model.pt").write_bytes(b"beside")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "train.pyc").touch()
    return folder


def test_while_a_worker_runs_what_it_writes_beside_its_code_is_there_too(output, code):
    files = ResultFiles(str(output), {0: str(code), 3: str(code)})
    assert paths(files) == ["beside-code-3/runs/model.pt", "beside-code/runs/model.pt", "model.pt", "runs/one/log"]
    assert paths(files, "beside-code") == paths(files, "beside-code/runs") == ["beside-code/runs/model.pt"]
    for path in ("beside-code/runs/model.pt", "beside-code-3/runs/model.pt", "runs/model.pt"):
        assert content(files, path) == b"beside"
    (output / "runs" / "model.pt").write_bytes(b"output")
    assert content(files, "runs/model.pt") == b"output", "what is in the output folder comes first"
    for path in ("beside-code/train.py", "train.py"):
        with pytest.raises(NoSuchFile, match="as it was shipped"):
            files.open(path)


def test_once_kept_it_is_found_by_the_commands_own_path(output):
    (output / "beside-code" / "wandb").mkdir(parents=True)
    (output / "beside-code" / "wandb" / "x").write_bytes(b"x")
    files = ResultFiles(str(output))
    assert content(files, "wandb/x") == b"x"
    listed = files.listing("wandb")
    assert (listed.folder, [one.path for one in listed.files]) == ("beside-code/wandb", ["beside-code/wandb/x"])
