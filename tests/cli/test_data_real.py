"""A job's data on one machine: a real `stoker up`, the real command, folders, and a path that was left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from .test_files_real import Machine

pytest.importorskip("fastapi")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

READ = "import os; print(open(os.environ['STOKER_DATA_MY_SET'] + '/train.txt').read())"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("data")
    work = folder / "work"
    (work / "data" / "sub").mkdir(parents=True)
    (work / "data" / "train.txt").write_text("42")
    (work / "data" / "sub" / "train.txt").write_text("43")
    (work / ".gitignore").write_text("data/\n")
    (work / "train.py").write_text("open('data/train.txt')\n")
    (work / "read.py").write_text(READ)
    found = Machine(folder / "home", work)
    yield found
    found.close()


def test_what_was_left_out_is_said_at_the_submit_and_known_again_in_the_failure(machine: Machine) -> None:
    ran = machine("run", "--name", "misses", "--", sys.executable, "train.py", check=False)
    assert ran.returncode == 1
    assert "· left out: data/ (.gitignore)\n" in ran.stderr
    why = machine("why", "misses").stdout
    assert "data/ was left out by .gitignore:1: give it as data (--data NAME=./data/" in " ".join(why.split())


def test_a_folder_of_this_machine_is_found_by_its_variable(machine: Machine) -> None:
    ran = machine("run", "--name", "reads", "--data", "my-set=./data", "--", sys.executable, "read.py")
    assert ran.stdout == "42\n"
    assert f"my-set ({machine.work / 'data'})" in machine("get", "reads").stdout
    below = f"spec.data=[{{name: my-set, path: {machine.work}/data, subPath: sub}}]"
    machine("clone", "reads", "--name", "again", "--set", below)
    assert machine("follow", "again").stdout == "43\n"


def test_what_is_not_there_or_no_path_is_refused_at_the_submit(machine: Machine) -> None:
    for given, says in (
        ("a=./none", f"there is no '{machine.work}/none' on the server's machine"),
        ("a=data", "'data' is a name, which no runtime offers on one machine"),
        ("a=claim:sets", "works on a Kubernetes cluster only; on one machine name a folder instead"),
        ("a", "--data a: write NAME=FROM"),
    ):
        refused = machine("submit", "--data", given, "--", sys.executable, "read.py", check=False)
        assert refused.returncode != 0 and says in " ".join(refused.stderr.split()), refused.stderr
