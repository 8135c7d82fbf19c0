"""What of a folder is shipped, under which digest, and what is refused with which message."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from pathlib import Path

import pytest

from stoker.client.code import folder as walking
from stoker.client.code import left_out as measuring
from stoker.client.code.bundle import read_folder
from stoker.client.code.left_out import left_out, left_out_field, left_out_text
from stoker.client.code.sizes import size_text
from stoker.client.errors import BadInput


@pytest.fixture
def project() -> Path:
    """The current folder."""
    return Path.cwd()


def _refusal(project: Path) -> str:
    with pytest.raises(BadInput) as met:
        read_folder(project)
    return str(met.value)


def test_what_is_never_shipped(project: Path) -> None:
    kept = ["train.py", "node_modules/x.js", "env.d/a", ".env", "pyc"]
    never = [".git/HEAD", "sub/.git", "__pycache__/a.pyc", "sub/b.pyc", ".DS_Store", "venv/pyvenv.cfg", "venv/bin/x"]
    data = ["state/stoker.db", "state/report.key", "state/token"]
    for name in (*kept, *never, *data):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    assert sorted(read_folder(project).by_path) == sorted(kept)
    assert "is a data folder of `stoker up`" in _refusal(project / "state")


def test_the_same_tree_has_the_same_digest_wherever_and_whenever(project: Path, tmp_path: Path) -> None:
    for name, text in {"train.py": "print(1)", "sub/b.py": "", "sub/c.py": "print(1)", "ünï.py": "x"}.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o700)
    (project / "link").symlink_to("./sub//b.py")
    bundle = read_folder(project)
    other = tmp_path / "elsewhere"
    shutil.copytree(project, other, symlinks=True)
    (other / "link").unlink()
    (other / "link").symlink_to("sub/b.py")
    (other / "empty").mkdir()
    for path in (other / "train.py", other / "run.sh"):
        os.utime(path, (1, 1))
    (other / "train.py").chmod(0o664)
    (other / "run.sh").chmod(0o755)
    assert read_folder(other).digest == bundle.digest
    assert (bundle.by_path["run.sh"].executable, bundle.by_path["train.py"].executable) == (True, False)
    assert (bundle.by_path["link"].link, len(bundle.by_hash)) == ("sub/b.py", 4)
    (other / "train.py").chmod(0o755)
    changed = read_folder(other).digest
    (other / "run.sh").write_text("#!/bin/bash\n")
    assert len({bundle.digest, changed, read_folder(other).digest}) == 3


def test_the_digest_is_fixed_for_all_versions(project: Path) -> None:
    (project / "train.py").write_text("print(42)\n")
    content = hashlib.sha256(b"print(42)\n").hexdigest()
    manifest = f'{{"files":[{{"path":"train.py","sha256":"{content}","size":10}}]}}'
    assert read_folder(".").digest == f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"


@pytest.mark.parametrize("target", ["/etc/passwd", "..", ".", "../outside", "sub/../../x", "sub/../a", "a\nb"])
def test_a_link_that_would_mean_something_else_there_is_refused(project: Path, target: str) -> None:
    (project / "sub").mkdir()
    (project / "data").symlink_to(target)
    said = _refusal(project)
    assert "data: it is a symbolic link to " in said and "leave it out by a line in .stokerignore" in said
    (project / ".stokerignore").write_text("/data\n")
    assert list(read_folder(project).by_path) == [".stokerignore"]


def test_a_link_that_stays_inside_is_kept_even_if_nothing_is_there(project: Path) -> None:
    (project / "a/b").mkdir(parents=True)
    (project / "a/b/up").symlink_to("../../train.py")
    assert read_folder(project).by_path["a/b/up"].link == "../../train.py"


def test_all_that_is_in_the_way_is_reported_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("socket")  # relative: a socket's address may be 107 bytes long
    (project / os.fsdecode(b"caf\xe9.py")).write_text("")
    (project / "new\nline").write_text("")
    (project / "next\x85line").write_text("")
    (project / "gpj.\u202etrain.py").write_text("")
    (project / "tr\u200bain.py").write_text("")
    levels = project / "/".join("l" * 64)
    levels.mkdir(parents=True)
    (levels / "f").write_text("")
    deep = project / "/".join(["d" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / ("f" * 100)).write_text("")
    said = _refusal(project)
    assert "pipe: it is a named pipe, which can't be shipped" in said
    assert "socket: it is a socket, which can't be shipped" in said
    assert "'caf\\udce9.py': the name is not UTF-8; rename it" in said
    assert "'new\\nline': the name holds U+000A (a control character), which can't be seen; rename it, or" in said
    assert "'next\\x85line': the name holds U+0085 (a control character)" in said
    assert "'gpj.\\u202etrain.py': the name holds U+202E (RIGHT-TO-LEFT OVERRIDE)" in said
    assert "'tr\\u200bain.py': the name holds U+200B (ZERO WIDTH SPACE)" in said
    assert "the path is over 1024 bytes long" in said
    assert "the path has 65 levels, over the limit of 64" in said


def test_a_file_that_can_t_be_read_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "secret.py").write_text("x")
    real = Path.open

    def refuse(path: Path, *args: object, **more: object) -> object:
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    assert "secret.py: Permission denied; make it readable, or leave it out" in _refusal(project)


@pytest.mark.parametrize("where", ["home", "above", "root"])
def test_the_home_folder_is_refused(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("HOME", str(project / "home"))
    (project / "home/p").mkdir(parents=True)
    said = _refusal({"home": project / "home", "above": tmp_path, "root": Path("/")}[where])
    assert "is not shipped as code" in said and "--code FOLDER" in said and "--no-code" in said
    assert read_folder(project / "home/p").manifest.files == ()


def test_a_link_to_the_home_folder_is_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    (project.parent / "link").symlink_to(project)
    assert "your home folder is not shipped" in _refusal(project.parent / "link")


def test_no_folder_is_refused(project: Path) -> None:
    (project / "file").write_text("")
    assert "No such file" in _refusal(project / "gone")
    assert "it is not a folder" in _refusal(project / "file")


def test_too_many_bytes_are_reported_with_what_holds_them(project: Path) -> None:
    for name, size in {"data/raw/train.bin": 60 << 20, "model.pt": 30 << 20, "train.py": 10}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        with (project / name).open("wb") as file:
            file.truncate(size)
    said = _refusal(project).splitlines()
    assert said[0].endswith("is too large to be shipped as code: 3 files, 94 MB; the limit is 10,000 files, 67 MB")
    assert said[1:4] == ["the largest in it:", "  data/raw/train.bin  63 MB", "  model.pt  31 MB"]
    assert ".stokerignore" in said[-1] and "--no-code" in said[-1]


def test_too_many_files_are_reported_with_where_they_are(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "MAX_FILES", 20)
    monkeypatch.setattr(walking, "MOST_FOUND", 40)
    (project / "data/images").mkdir(parents=True)
    (project / "train.py").write_text("x")
    for number in range(30):
        (project / f"data/images/{number}.png").write_text("x")
    assert "  data/images/  30 B in 30 files" in _refusal(project)
    for number in range(30, 100):
        (project / f"data/images/{number}.png").write_text("x")
    assert "code: more than 41 files" in _refusal(project)


def test_a_hopelessly_large_folder_is_not_all_looked_at(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "MOST_LOOKED_AT", 50)
    (project / ".gitignore").write_text("*.png\n")
    (project / "images").mkdir()
    for number in range(60):
        (project / f"images/{number}.png").write_text("")
    assert "holds over 50 files and folders, too many to look at (got as far as images)" in _refusal(project)
    (project / ".stokerignore").write_text("images/\n")
    assert sorted(read_folder(project).by_path) == [".gitignore", ".stokerignore"]


def test_sizes_are_short() -> None:
    sizes = [0, 999, 1000, 9_940, 9_960, 34_400, 999_600, 64 << 20, 2_100_000_000]
    assert [size_text(size) for size in sizes] == [
        *("0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "34 kB", "1.0 MB", "67 MB", "2.1 GB")
    ]


def test_what_stays_behind_is_named_with_its_size_and_rule_the_largest_first(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "data/a": 3_000_000,
        "data/b/c": 2_000_000,
        "runs/x": 9,
        "w.ckpt": 4_000_000,
        "sub/cache/y": 1,
        "train.py": 1,
    }
    for name, size in (files | {"venv/pyvenv.cfg": 9}).items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        with (project / name).open("wb") as file:
            file.truncate(size)
    (project / ".gitignore").write_text("data/\n\n*.ckpt\nruns\nvenv/\n")
    (project / "sub" / ".stokerignore").write_text("cache/\n")
    (project / "runs" / "loop").symlink_to(project)
    bundle = read_folder(project)
    found = left_out(bundle)
    assert left_out_text(found) == "data/ (5.0 MB), w.ckpt (4.0 MB), runs/ and 1 more (.gitignore)"
    assert left_out_field(found) == [
        {"path": "data/", "by": ".gitignore:1"},
        {"path": "w.ckpt", "by": ".gitignore:3"},
        {"path": "runs/", "by": ".gitignore:4"},
        {"path": "sub/cache/", "by": "sub/.stokerignore:1"},
    ]
    assert left_out_text([]) == ""
    monkeypatch.setattr(measuring, "MOST_MEASURED", 1)
    assert {(one.path, one.whole) for one in left_out(bundle)} >= {("data/", False), ("runs/", False)}
    monkeypatch.setattr(measuring, "MOST_MEASURED", 20_000)
    late = iter(range(100))
    assert not any(one.whole for one in left_out(bundle, clock=lambda: float(next(late))))


def test_names_that_cannot_be_seen_are_shown_escaped_and_not_sent(project: Path) -> None:
    for name in ("a\x1b[2J", os.fsdecode(b"\xff"), *(f"f{number:03}" for number in range(100))):
        (project / name).write_text("")
    (project / ".gitignore").write_text("*\n")
    found = left_out(read_folder(project))
    assert len(found) == 103 and left_out_text(found).isprintable()
    assert [one["path"] for one in left_out_field(found)] == [".gitignore", *(f"f{number:03}" for number in range(31))]
