"""A job's data on one machine: a real `stoker up`, the real command, folders, and a path that was left behind."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator

import pytest

from stoker.fetch.cache import first_file
from tests.local.test_fetch import Site, sha256
from tests.support.harness import until

from .test_files_real import Machine

pytest.importorskip("fastapi")
pytestmark = pytest.mark.slow

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


def test_what_was_left_out_is_reported_at_the_submit_and_known_again_in_the_failure(machine: Machine) -> None:
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


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_a_url_is_fetched_before_the_job_starts_and_once_for_all_that_name_its_digest(
    machine: Machine, site: Site
) -> None:
    url = site.put("/train.txt", b"from the net")
    args = ("--data", f"my-set={url}", "--", sys.executable, "read.py")
    assert machine("run", "--name", "url", *args).stdout == "from the net\n"
    assert f"my-set ({url})" in machine("get", "url").stdout
    digest = f"spec.data=[{{name: my-set, url: '{url}', digest: '{sha256(b'from the net')}'}}]"
    asked = site.asked.count("/train.txt")
    for name in ("first", "second"):
        machine("clone", "url", "--name", name, "--set", digest, "--set", "spec.workers=2")
        assert "[1] from the net\n" in machine("follow", name).stdout
    assert site.asked.count("/train.txt") == asked + 1, "four workers of two jobs"


def test_what_can_not_be_fetched_is_a_category_of_its_own_and_names_no_secret(machine: Machine, site: Site) -> None:
    site.put("/denied.txt", b"", status=403)
    args = ("--data", f"d={site.url}/denied.txt?Signature=top", "--", sys.executable, "read.py")
    machine("submit", "--name", "denied", *args)
    until(lambda: machine.job("denied")["status"].get("attempts"), "its first attempt's end", timeout_s=60)
    end = machine.job("denied")["status"]["attempts"][0]
    assert end["category"] == "DataUnavailable"
    assert end["message"].endswith(f"by url could not be fetched: data d: {site.url}/denied.txt?…: 403 Forbidden")
    machine("cancel", "denied")
    for url, says in (("file:///etc/passwd", "must begin with https://"), ("gs://b/x", "needs the package gcsfs")):
        refused = machine("submit", "--data", f"d={url}", "--", sys.executable, "read.py", check=False)
        assert says in " ".join(refused.stderr.split())


def test_fetched_data_is_held_while_a_worker_runs(machine: Machine, site: Site) -> None:
    url = site.put("/held.txt", b"held")
    machine("submit", "--name", "holds", "--data", f"d={url}", "--", "sleep", "600")
    until(lambda: machine.job("holds")["status"]["phase"] == "Running", "it runs", timeout_s=60)
    [file] = [path for path in (machine.home / "data").glob("*/*/held.txt") if not path.parent.is_symlink()]
    assert first_file(file.parent) == file, "what a worker holds"
    number = os.open(file, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    machine("cancel", "holds")
    until(lambda: machine.job("holds")["status"]["phase"] == "Cancelled", "its end", timeout_s=60)
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(number)
