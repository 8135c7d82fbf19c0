"""What .gitignore leaves out is what git itself leaves out; .stokerignore says more than that."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stoker.client.code.folder import scan

GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": "/nonexistent"}
NAMES = ["a", "b", "ab", "a.b", ".a", "c d", "!a", "#a", "b*", "[a]"]
SEGMENTS = [
    *("a", "b", "*", "**", "***", "?", "a*", "*b", "[ab]", "[!a]", "[^b]*", "[[:alpha:]]", "[]a]", "[z-a]"),
    *(".a", ".*", "ab", "a.b", r"\#a", r"\!a", "#a", r"c\ d", "c*", "a?", r"\[a\]", r"b\*"),
]

segment = st.sampled_from(SEGMENTS)
pattern = st.builds(
    lambda sign, root, parts, folder, end: f"{sign}{root}{'/'.join(parts)}{folder}{end}",
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(segment, min_size=1, max_size=3),
    st.sampled_from(["", "", "/"]),
    st.sampled_from(["", "", " ", "\r"]),
)
folder_path = st.lists(st.sampled_from(NAMES), max_size=3).map("/".join)
trees = st.fixed_dictionaries(
    {
        "files": st.lists(st.tuples(folder_path, st.sampled_from(NAMES)), min_size=1, max_size=12),
        "rules": st.dictionaries(folder_path, st.lists(pattern, min_size=1, max_size=3), max_size=3),
        "excluded": st.lists(pattern, max_size=1),
    }
)


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    with tempfile.TemporaryDirectory() as folder:
        _git(folder, "init", "-q")
        yield Path(folder).resolve()


def _git(folder: str | Path, *args: str) -> str:
    env = {**os.environ, **GIT}
    return subprocess.run(["git", *args], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def _grow(repository: Path, tree: dict) -> None:
    for entry in repository.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for folder, name in tree["files"]:
        try:
            (repository / folder).mkdir(parents=True, exist_ok=True)
            (repository / folder / name).write_text("x")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            pass  # drawn as a file before, or as a folder
    for folder, lines in tree["rules"].items():
        if (repository / folder).is_dir():
            (repository / folder / ".gitignore").write_bytes("".join(f"{line}\n" for line in lines).encode())
    (repository / ".git/info/exclude").write_text("".join(f"{line}\n" for line in tree["excluded"]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_a_folder_holds_what_git_says(repository: Path, tree: dict) -> None:
    _grow(repository, tree)
    listed = _git(repository, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    assert [found.path for found in scan(str(repository)).files] == sorted(filter(None, listed))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees, below=st.sampled_from(["a", "b", "ab"]))
def test_rules_above_the_folder_hold_too(repository: Path, tree: dict, below: str) -> None:
    tree["files"] += [(below, name) for name in NAMES]
    _grow(repository, tree)
    assume((repository / below).is_dir())
    ignored = subprocess.run(["git", "check-ignore", "-q", below], cwd=repository, env={**os.environ, **GIT}).returncode
    assume(ignored == 1)  # else git lists nothing, and we what was asked for
    listed = _git(repository / below, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    assert [found.path for found in scan(str(repository / below)).files] == sorted(filter(None, listed))


def _paths(folder: Path) -> list[str]:
    return [found.path for found in scan(str(folder)).files]


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_stokerignore_counts_more_than_any_gitignore(tmp_path: Path) -> None:
    project = tmp_path / "p"
    _write(
        project,
        **{
            ".gitignore": "*.bin\ndata/\n",
            "sub/.gitignore": "*.txt\n",
            ".stokerignore": "!small.bin\n!*.txt\nbig.py\n",
        },
        **{"small.bin": "", "large.bin": "", "data/x": "", "big.py": "", "sub/a.txt": "", "train.py": ""},
    )
    assert _paths(project) == [
        *(".gitignore", ".stokerignore", "small.bin", "sub/.gitignore", "sub/a.txt", "train.py"),
    ]


def test_a_folder_that_is_left_out_is_shipped_when_it_is_asked_for(tmp_path: Path) -> None:
    _write(tmp_path, **{".git/HEAD": "", ".gitignore": "build/\n*.log\n", "build/train.py": "", "build/a.log": ""})
    assert _paths(tmp_path / "build") == ["train.py"]


def test_rules_above_count_up_to_the_repository_and_not_without_one(tmp_path: Path) -> None:
    _write(tmp_path, **{".gitignore": "*.py\n", "p/train.py": "", "p/.gitignore": "*.log\n", "p/a.log": ""})
    assert _paths(tmp_path / "p") == [".gitignore", "train.py"]
    _write(tmp_path, **{".git/info/exclude": "\ufeff# none\n"})
    assert _paths(tmp_path / "p") == [".gitignore"]


def test_a_worktree_s_exclude_file_is_the_repository_s(tmp_path: Path) -> None:
    _write(
        tmp_path,
        **{"main/.git/info/exclude": "*.secret\n", "main/.git/worktrees/w/commondir": "../..\n"},
        **{"w/.git": f"gitdir: {tmp_path}/main/.git/worktrees/w\n", "w/a.secret": "", "w/train.py": ""},
    )
    assert _paths(tmp_path / "w") == ["train.py"]


def test_a_gitignore_that_is_a_link_or_a_folder_says_nothing(tmp_path: Path) -> None:
    _write(tmp_path, **{"rules": "*.py\n", "train.py": "", "sub/.gitignore/x": ""})
    (tmp_path / ".gitignore").symlink_to("rules")
    assert _paths(tmp_path) == [".gitignore", "rules", "sub/.gitignore/x", "train.py"]
