"""What a job's folder lists is installed on real nodes: once for its project, in the job's own image, into a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.test_fetch import Site
from tests.support.cluster_stack import Project
from tests.support.harness import until
from tests.support.wheels import make_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "requirements.txt").write_text("tinypkg==1.0\n")
    (work / "train.py").write_text("import tinypkg; print(tinypkg.WORD, tinypkg.__file__)\n")
    return work


@pytest.fixture
def options(project: Project, site: Site, tmp_path: Path) -> list[str]:
    """Of `stoker run`: all but the job's name and its command. The wheel is on a page that the pods reach."""
    wheel = make_wheel(tmp_path, "tinypkg", "1.0", "WORD = 'one'")
    url = site.put(f"/{project.name}/{wheel.name}", wheel.read_bytes())
    page = site.put(f"/{project.name}/links.html", f'<a href="{url}">'.encode(), **{"Content-Type": "text/html"})
    given = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": page,
        "PIP_TRUSTED_HOST": project.stack.bed.machine_address,
    }
    env = [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
    return ["--install", "--image", project.stack.images["foreign-pip"], "--memory", "512Mi", "--cpu", "100m", *env]


@pytest.mark.parametrize("kind", ["claim", "hostPath"])
def test_a_gang_installs_once_and_the_next_job_not_at_all(
    project: Project, site: Site, folder: Path, disk: Path, options: list[str], kind: str
) -> None:
    part = project.use_cache(disk if kind == "hostPath" else None)
    for name in ("first", "next"):
        ran = project.stoker("run", *options, "--name", name, "--workers", "2", "--", "python3", "train.py", cwd=folder)
        assert "environment: requirements.txt, installed once for the project" in ran.stderr, ran.stderr
        assert ran.stdout.count("one /stoker/environments/") == 2, ran.stdout
    assert sum(path.endswith(".whl") for path in site.asked if path.startswith(f"/{project.name}/")) == 1
    assert "installed before" in ran.stdout
    assert list(part.glob("environments/*/lib/python3*/site-packages/tinypkg.py"))


def test_no_link_in_a_projects_folder_leads_an_installation_to_anothers(
    project: Project, folder: Path, disk: Path, options: list[str]
) -> None:
    """Who may enter the containers of a project's pods can write all of its folder in the cache."""
    part = project.use_cache(disk)
    theirs = part.parent / "another" / "environments"
    theirs.mkdir(parents=True, exist_ok=True)
    theirs.chmod(0o777)
    part.mkdir()
    part.chmod(0o777)
    (part / "environments").symlink_to("../another/environments")
    project.stoker("submit", *options, "--name", "follows", "--", "python3", "train.py", cwd=folder)
    until(lambda: "failed to prepare subPath" in project.job("follows").status.message, "the refusal", timeout_s=90)
    assert not list(theirs.iterdir())


def test_a_package_of_src_is_imported_from_the_copy(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed editable in the environment of the submit; on the node there is none, and `run` says so."""
    work, venv = tmp_path / "work", tmp_path / "venv"
    (work / "src" / "mynet").mkdir(parents=True)
    (work / "src" / "mynet" / "__init__.py").touch()
    (work / "train.py").write_text("import mynet; print(mynet.__file__)\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    [packages] = venv.glob("lib/python3*/site-packages")
    (packages / "__editable__.mynet.pth").write_text(f"{work / 'src'}\n")
    monkeypatch.setenv("PATH", f"{venv / 'bin'}:{os.environ['PATH']}")
    image = project.stack.images["foreign-python"]
    ran = project.stoker("run", "--image", image, "--memory", "128Mi", "--", "python3", "train.py", cwd=work)
    assert "environment: the image's; imports from the copy first (src)" in ran.stderr, ran.stderr
    assert ran.stdout.endswith("/code/src/mynet/__init__.py\n") and str(tmp_path) not in ran.stdout
