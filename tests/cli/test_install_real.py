"""`stoker run --install`: what the folder lists is there for the job, by a real `stoker up` on one machine."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import until
from tests.support.machine import Machine
from tests.support.wheels import make_wheel

pytest.importorskip("fastapi")
pytestmark = pytest.mark.slow


class InstallingMachine(Machine):
    """Its folder lists a package that is in no index."""

    def __init__(self, folder: Path) -> None:
        work, self.wheels = folder / "work", folder / "wheels"
        for made in (work, self.wheels):
            made.mkdir()
        make_wheel(self.wheels, "tinypkg", "1.0", "WORD = 'one'")
        (work / "requirements.txt").write_text("tinypkg==1.0\n")
        (work / "train.py").write_text("import sys, tinypkg; print(tinypkg.WORD, sys.prefix)\n")
        super().__init__(folder / "home", work)

    def run(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        env = ("-e", "PIP_NO_INDEX=1", "-e", f"PIP_FIND_LINKS={self.wheels}")
        return self("run", "--install", "--name", name, *env, "--", *args, check=False)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstallingMachine]:
    found = InstallingMachine(tmp_path_factory.mktemp("install"))
    yield found
    found.close()


def test_packages_are_installed_before_the_first_job_and_found_by_the_second(machine: InstallingMachine) -> None:
    first = machine.run("first", "python", "train.py")
    assert first.returncode == 0, first.stderr
    assert "environment: requirements.txt, installed once for the project\n" in first.stderr
    word, _, place = first.stdout.splitlines()[-1].partition(" ")
    assert word == "one" and Path(place).parent == machine.home / "environments" / "default"
    log = machine("logs", "first").stdout
    assert "[stoker] environment: installing requirements.txt\n" in log and "kept for the project's later jobs" in log
    second = machine.run("second", "tinypkg-say")
    assert second.stdout.splitlines() == ["[stoker] environment: requirements.txt, installed before", "command one"]
    assert machine.job("second")["spec"]["trainer"]["requirements"] == "requirements.txt"


def test_what_can_t_be_installed_fails_the_job_with_the_reason_and_a_stop_ends_the_installing(
    machine: InstallingMachine,
) -> None:
    (machine.work / "requirements.txt").write_text("tinypkg==9.9\n")
    failed = machine.run("missing", "python", "train.py")
    assert failed.returncode != 0
    message = machine.job("missing")["status"]["message"]
    assert message.startswith("exit 126: can't install requirements.txt: pip exited with 1: ERROR: No matching"), (
        message
    )
    (machine.work / "requirements.txt").write_text("tinypkg==9.8\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an index that takes the question and never answers
        index = f"http://127.0.0.1:{silent.getsockname()[1]}"
        args = ("submit", "--install", "--name", "stuck", "-e", "PIP_DEFAULT_TIMEOUT=100")
        machine(*args, "-e", f"PIP_INDEX_URL={index}", "--", "python", "train.py")
        silent.settimeout(60)
        with silent.accept()[0]:
            machine("cancel", "stuck")
            until(lambda: machine.job("stuck")["status"]["phase"] == "Cancelled", "its end", 60)


def test_a_folder_without_a_list_and_a_launcher_are_refused_at_the_submit(machine: InstallingMachine) -> None:
    (machine.work / "requirements.txt").unlink()
    refused = machine("submit", "--install", "--", "python", "train.py", check=False)
    assert refused.returncode == 2 and "the folder ships neither uv.lock nor requirements.txt" in refused.stderr
    (machine.work / "requirements.txt").write_text("tinypkg==1.0\n")
    refused = machine("submit", "--install", "--", "uv", "run", "train.py", check=False)
    assert refused.returncode == 2 and "uv makes an environment of its own" in refused.stderr
    refused = machine("submit", "--install", "--no-code", "--", "python", "train.py", check=False)
    assert refused.returncode == 2 and "--install goes with a command that ships its folder" in refused.stderr
