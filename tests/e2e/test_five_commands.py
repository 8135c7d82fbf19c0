"""A project as researchers have them, unchanged: five commands from `git clone` to its model file back in the folder.

300 files with a src layout, a lock file, an editable install, data that git ignores, and results at a relative path.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.harness import free_port

pytestmark = pytest.mark.slow

PYPROJECT = """\
[project]
name = "mynet"
version = "1.0"
requires-python = ">=3.11"

[build-system]
requires = ["uv_build>=0.9,<1"]
build-backend = "uv_build"
"""
TRAIN = """\
import argparse, json, pathlib
import mynet
from mynet.part_7 import VALUE

parser = argparse.ArgumentParser()
parser.add_argument("--data")
rows = pathlib.Path(parser.parse_args().data, "train.csv").read_text().split()
pathlib.Path("runs").mkdir()
model = {"mean": sum(map(float, rows)) / len(rows), "value": VALUE, "package": mynet.__file__}
pathlib.Path("runs/model.json").write_text(json.dumps(model))
print("trained on", len(rows), "rows")
"""


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository with a lock file, by uv and git themselves."""
    folder = tmp_path / "origin"
    (folder / "src/mynet").mkdir(parents=True)
    for number in range(295):
        (folder / f"src/mynet/part_{number}.py").write_text(f"VALUE = {number}\n" + "# a line\n" * 8)
    for name, text in {
        "src/mynet/__init__.py": "",
        "pyproject.toml": PYPROJECT,
        "train.py": TRAIN,
        ".gitignore": "/data/\n/runs/\n/.venv/\n__pycache__/\n",
    }.items():
        (folder / name).write_text(text)
    subprocess.run(["uv", "lock", "-q"], cwd=folder, env=_env(tmp_path), check=True)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for args in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *args], cwd=folder, check=True)
    return folder


def _env(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "VIRTUAL_ENV"))}
    return kept | {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STOKER_HOME": str(tmp_path / "state"),
        "UV_OFFLINE": "1",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON": sys.executable,
    }


def test_from_a_clone_to_the_model_in_five_commands(origin: Path, tmp_path: Path) -> None:
    project, took = tmp_path / "mynet", {}

    def step(line: str, folder: Path = project) -> str:
        """What it prints, both ways."""
        began = time.monotonic()
        command = ["bash", "-c", f"exec 2>&1; {line}"]
        done = subprocess.run(command, cwd=folder, env=_env(tmp_path), stdout=subprocess.PIPE, text=True, timeout=100)
        took[line] = time.monotonic() - began
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    step("git clone -q origin mynet", tmp_path)
    (project / "data").mkdir()  # as it was downloaded
    (project / "data/train.csv").write_text("1\n2\n6\n")
    step("uv sync -q")
    up = step(f"stoker up --background --port {free_port()}")
    try:
        ran = step('stoker run --name first -- uv run train.py --data "$PWD/data"')
        step("stoker cp first:runs/model.json model.json")
    finally:
        os.kill(int(up.partition("kill ")[2].split()[0]), signal.SIGTERM)
    assert "code: 300 files, " in ran and "left out: " in ran and "data/" in ran, ran
    assert f"environment: {project}/.venv, imports from the copy first (src)\n" in ran
    assert "trained on 3 rows\n" in ran and "first Succeeded" in ran
    model = json.loads((project / "model.json").read_text())
    assert (model["mean"], model["value"]) == (3.0, 7)
    assert model["package"].startswith(f"{tmp_path}/state/workers/"), "the copy's, not the folder's"
    for line, seconds in took.items():  # `pytest -s` shows them; docs/environments.md has a run's
        print(f"{seconds:6.2f} s  {line}")
