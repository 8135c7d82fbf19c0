"""`stoker run` in a folder of one's own, through a real `stoker up`: the job runs a copy of what was submitted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.harness import Server, running

pytestmark = pytest.mark.slow
Stoker = Callable[..., subprocess.CompletedProcess[str]]

TRAIN = """
import os, pathlib, sys
from model import NAME
open("mine", "x").close()  # fails where another worker or attempt was before
print("version one,", NAME, sorted(os.listdir()), flush=True)
pathlib.Path(os.environ["STOKER_OUTPUT_DIR"], f"result-{os.environ['STOKER_ATTEMPT']}").write_text("done")
pathlib.Path(os.environ["PROJECT"], "train.py").write_text("print('version two')")
sys.exit(5 if os.environ["STOKER_ATTEMPT"] == "1" and "--fail" in sys.argv else 0)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("up") / "data") as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "model").mkdir(parents=True)
    (folder / "model/__init__.py").write_text("NAME = 'a model'\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "old.log").write_text("not this")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def stoker(server: Server, project: Path, tmp_path: Path) -> Stoker:
    env = {
        **os.environ,
        "STOKER_SERVER": server.url,
        "STOKER_TOKEN": (server.data / "token").read_text().strip(),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PROJECT": str(project),
    }

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stoker.cli.main", *args]
        return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=100)

    return run


SEEN = "version one, a model ['.gitignore', 'mine', 'model', 'train.py']\n"


def test_a_folder_runs_as_it_was_submitted_on_every_attempt(stoker: Stoker, server: Server, project: Path) -> None:
    rule = "spec.retry={rules: [{categories: [UserError], limit: 1, backoff: 1s}]}"
    done = stoker("run", "-e", "PROJECT", "--set", rule, "--name", "twice", "--", sys.executable, "train.py", "--fail")
    assert (done.returncode, done.stdout) == (0, SEEN * 2), done.stderr
    assert (project / "train.py").read_text() == "print('version two')", "what is edited meanwhile is the next job's"
    assert not (project / "mine").exists()
    with server.client() as client:
        job = client.get("twice")
    kept = server.data / "jobs" / job.uid / "output"
    assert sorted(path.name for path in kept.iterdir()) == ["beside-code", "result-1", "result-2"]
    assert f"\ncode       {job.spec.trainer.code}\n" in stoker("get", "twice").stdout
    after = stoker("run", "--", sys.executable, "train.py")
    assert after.stdout == "version two\n" and "code: 3 files, " in after.stderr, after.stderr


def test_each_worker_of_a_gang_has_a_copy_of_its_own(stoker: Stoker) -> None:
    done = stoker("run", "-e", "PROJECT", "--workers", "2", "--cpu", "500m", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{worker}] {SEEN.rstrip()}" for worker in range(2)]


def test_a_script_of_the_folder_and_a_place_in_it(stoker: Stoker, project: Path) -> None:
    (project / "model/go").write_text('#!/bin/sh\necho "$0 in ${PWD##*/}"; exit 9\n')
    (project / "model/go").chmod(0o755)
    done = stoker("run", "--code", ".", "--set", "spec.trainer.workingDir=model", "--", "./go")
    assert (done.returncode, done.stdout) == (9, "./go in model\n"), done.stderr


def test_without_code_a_command_runs_in_the_folder_itself(stoker: Stoker, project: Path) -> None:
    done = stoker("run", "--no-code", "--", sys.executable, "-c", "import os; print(os.getcwd())")
    assert (done.returncode, done.stdout) == (0, f"{project}\n"), done.stderr


IMPORTS = """
import os, pathlib, mypkg
print(mypkg.VERSION, pathlib.Path(mypkg.__file__).is_relative_to(os.getcwd()), os.environ["PATH"].partition(":")[0])
"""


def test_an_editable_install_runs_what_was_submitted_not_what_is_there_by_then(
    stoker: Stoker, server: Server, project: Path
) -> None:
    (project / "src/mypkg").mkdir(parents=True)
    (project / "src/mypkg/__init__.py").write_text("VERSION = 'as submitted'\n")
    (project / "train.py").write_text(IMPORTS)
    venv = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "mypkg.pth").write_text(f"{project}/src\n")
    edit = f"import pathlib; pathlib.Path('{project}/src/mypkg/__init__.py').write_text('VERSION = 0'); import train"
    done = stoker("run", "--", f"{venv}/bin/python", "-c", edit)
    assert (done.returncode, done.stdout) == (0, f"as submitted True {venv}/bin\n"), done.stderr
    assert f"environment: {venv}, imports from the copy first (src)\n" in done.stderr
