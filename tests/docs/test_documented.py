"""Every command of README, docs/*.md, the runbooks and the chart's notes runs as it is written.

tests/support/documented.toml holds the values that are put in; what needs nodes or minutes is run by tests/e2e/cluster.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documented import PROCESS_TREE, PROGRAMS, ROOT, RUNBOOKS, Sandbox, blocks, notes, pages
from tests.support.frameworks import frameworks
from tests.support.testbed import build
from tests.support.testbed.control_plane import ControlPlane
from tests.support.testbed.errors import Unavailable
from tests.support.testbed.fixtures import skip_loudly

PAGES = pages()
NOTES = "helm/stoker/templates/NOTES.txt"


def _with(place: str) -> list[str]:
    return [page for page, text in PAGES.items() if any(block.place == place for block in blocks(text))]


FIRST = ("README.md", "docs/quickstart.md", RUNBOOKS)
"""What a newcomer runs, and who is in trouble: always tried. The other pages with `make e2e`."""


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page in FIRST else pytest.mark.e2e) for page in _with("machine")]
)
def test_on_one_machine(page: str, tmp_path: Path) -> None:
    Sandbox(tmp_path / "sandbox").run(page, PAGES[page], "machine")


def test_nothing_is_left_of_commands_whose_test_was_killed(tmp_path: Path) -> None:
    """Not of those either that left the session, lost their parent or ignore signals."""
    daemon = "trap '' TERM HUP; (echo $BASHPID; exec sleep 1000) & echo $$; wait"
    os.mkfifo(tmp_path / "end")
    command = f"setsid bash -c {shlex.quote(daemon)} & (setsid sleep 1000 & echo $!); read < {tmp_path / 'end'}"
    test = "import subprocess, sys\nsubprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE).wait()"
    for ends in ("killed", "the command"):
        args = [sys.executable, "-c", test, sys.executable, PROCESS_TREE, "bash", "-c"]
        process = subprocess.Popen([*args, command], stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            left = [int(process.stdout.readline()) for _ in range(3)]
            if ends == "killed":
                process.kill()
            else:
                (tmp_path / "end").write_text("\n")
            process.stdout.read()  # its end: no process has it open any more
        assert not [pid for pid in left if Path(f"/proc/{pid}").exists()], ends


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", _with("frameworks"))
def test_with_the_frameworks(page: str, tmp_path: Path) -> None:
    """Hugging Face, Lightning and TensorBoard, as packages of a folder of their own (tests/support/frameworks.py)."""
    try:
        packages = str(frameworks())
    except Unavailable as error:
        pytest.skip(str(error))
    env = {"PYTHONPATH": packages, "HF_HUB_OFFLINE": "1", "PATH": f"{PROGRAMS}:{packages}/bin:{os.environ['PATH']}"}
    Sandbox(tmp_path / "sandbox", env).run(page, PAGES[page], "frameworks")


@pytest.fixture(scope="module")
def installed() -> Iterator[tuple[ControlPlane, str]]:
    """A control plane with the chart on it (no node runs its pods), and the notes that Helm printed."""
    try:
        helm, plane = build.program("helm"), ControlPlane()
    except Unavailable as error:
        skip_loudly(str(error))
    with plane:
        system = ["--namespace=stoker-system", "--create-namespace", "--set=rbac.openDefaultQueue=false"]
        system.append("--set=api.persistence.storageClass=-")  # no default class is there
        command = [str(helm), f"--kubeconfig={plane.kubeconfig}", "install", "stoker", "helm/stoker", *system]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60, check=True)
        yield plane, notes(done.stdout.partition("NOTES:")[2])


@pytest.mark.slow
@pytest.mark.parametrize("page", [*_with("cluster"), NOTES])
def test_on_a_cluster(page: str, installed: tuple[ControlPlane, str], tmp_path: Path) -> None:
    plane, printed = installed
    Sandbox(tmp_path / "sandbox", {"KUBECONFIG": str(plane.kubeconfig)}).run(page, PAGES.get(page, printed), "cluster")
    plane.kubectl("delete", "namespace", "vision", "--ignore-not-found")


def test_python_on_the_pages_has_no_undefined_name() -> None:
    for page, text in PAGES.items():
        for block in blocks(text):
            if block.language == "python":
                [(line, code)] = block.commands
                command = [PROGRAMS / "ruff", "check", "--isolated", "--select=E9,F", "--stdin-filename", page, "-"]
                done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=30)
                assert done.returncode == 0, f"{page}:{line}\n{done.stdout}"
