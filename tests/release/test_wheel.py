"""The wheel: the same bytes from the same source, all rooms and nothing else in it, and a light install that works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from tools.release import source, wheel

pytestmark = pytest.mark.timeout(2 * wheel.BUILD_S + 120)  # each of two builds has its own limit, which comes first
SERVERS = ("torch", "fastapi", "uvicorn", "numpy", "kubernetes", "prometheus-client", "nvidia-ml-py")


@pytest.fixture(scope="module")
def built(taken: source.Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    wheel.build(taken, folder)
    return folder


def uv(*args: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run([find_uv_bin(), *args], capture_output=True, text=True, timeout=110, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_built_twice_the_bytes_are_the_same(
    built: Path, taken: source.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "elsewhere"
    shutil.copytree(taken.root, again)
    for path in again.rglob("*"):
        os.utime(path, (1e9, 1e9))  # what a file's date is does not matter
    monkeypatch.setenv("PATH", str(tmp_path))  # nor what is on PATH: uv comes with the `dev` extra
    wheel.build(source.Source(again, taken.version, taken.commit, taken.epoch), tmp_path)
    for kind in (wheel.wheel_file, wheel.sdist_file):
        assert kind(built).name == kind(tmp_path).name
        assert kind(built).read_bytes() == kind(tmp_path).read_bytes()


def test_all_rooms_are_in_the_wheel_and_nothing_else(built: Path, taken: source.Source) -> None:
    file = wheel.wheel_file(built)
    assert wheel.wheel_problems(file) == []
    assert wheel.wheel_version(file) == str(taken.version)
    with zipfile.ZipFile(file) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(taken.root / folder))
        for folder in ("operator", "api", "trainer-image")
        for room in wheel.ROOMS
        for path in (taken.root / folder / room).rglob("*")
        if path.is_file()
    }
    assert names == wanted
    assert not [name for name in names if "test" in name]


def test_the_sdist_has_what_a_build_and_its_tests_need(built: Path, tmp_path: Path) -> None:
    wheel.unpack(wheel.sdist_file(built), tmp_path)
    (root,) = tmp_path.iterdir()
    for name in ("pyproject.toml", "LICENSE", "tests/release/test_wheel.py", "helm/stoker/Chart.yaml", "Dockerfile"):
        assert (root / name).is_file()


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ("stoker_worker/start.sh", "stoker_worker/start.sh is missing"),
        ("stoker_api/py.typed", "stoker_api/py.typed is missing"),
        ("+tests/__init__.py", "tests does not belong into it"),
    ],
)
def test_a_wheel_that_lacks_or_adds_something_is_named(built: Path, tmp_path: Path, change: str, reported: str) -> None:
    copy = tmp_path / wheel.wheel_file(built).name
    with zipfile.ZipFile(wheel.wheel_file(built)) as whole, zipfile.ZipFile(copy, "w") as other:
        for name in whole.namelist():
            if name != change:
                other.writestr(name, whole.read(name))
        if change.startswith("+"):
            other.writestr(change[1:], "")
    assert wheel.wheel_problems(copy) == [reported]


@pytest.mark.slow
def test_the_bare_install_is_the_client_and_light(built: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    uv("venv", "--quiet", "--python", sys.executable, str(venv))
    uv("pip", "install", "--quiet", "--python", str(venv), str(wheel.wheel_file(built)))
    has = {line.partition("==")[0] for line in uv("pip", "freeze", "--python", str(venv)).splitlines()}
    assert {"stoker", "click", "pydantic", "websockets"} <= {name.partition(" @")[0] for name in has}
    assert not has & set(SERVERS)
    said = subprocess.run([venv / "bin/stoker", "--version"], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert said.returncode == 0 and wheel.wheel_version(wheel.wheel_file(built)) in said.stdout, said.stderr
    worker = "import stoker_worker.bundle as b, tempfile; b.install(tempfile.mkdtemp())"
    done = subprocess.run([venv / "bin/python", "-c", worker], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def documented_installs() -> list[str]:
    """The lines of the quickstart that install Stoker, as they stand there."""
    page = (source.ROOT / "docs/quickstart.md").read_text()
    return [line.partition("#")[0].strip() for line in page.splitlines() if re.match(r"[A-Z_=a-z ]*pip install", line)]


def test_what_pages_and_messages_say_to_install_is_there() -> None:
    extras = tomllib.loads((source.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = set()
    for name in ("README.md", "docs", "operator", "api", "trainer-image"):
        for path in [source.ROOT / name] if name.endswith(".md") else (source.ROOT / name).rglob("*"):
            if path.suffix in (".md", ".py"):
                for line in re.findall(r"pip install .*", path.read_text()):
                    assert "'stoker[" not in line, f"{path}: no index has Stoker: {line}"
                    asked |= set(",".join(re.findall(r"\[([a-z,]+)\]", line)).split(","))
    assert asked - {""} <= set(extras)


def install(line: str, folder: Path, python: str = sys.executable) -> Path:
    """Carry out a line of the quickstart in `folder`, with a new environment active. Returns: the environment."""
    venv = folder / "venv"
    uv("venv", "--quiet", "--seed", "--clear", "--python", python, str(venv))
    programs = f"{venv / 'bin'}:{Path(find_uv_bin()).parent}:{os.environ['PATH']}"
    env = {**os.environ, "VIRTUAL_ENV": str(venv), "PATH": programs}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{line}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    return venv


@pytest.mark.slow
def test_the_documented_install_of_the_wheel_works(built: Path, tmp_path: Path) -> None:
    """What it depends on is left out: `test_the_bare_install_is_the_client_and_light` installs that."""
    [line] = [line for line in documented_installs() if "dist/" in line]
    file = wheel.wheel_file(built)
    named = re.search(r"dist/(\S+\.whl)", line)
    assert named is not None and named[1] == re.sub(r"stoker-[^-]+-", "stoker-0.1.0-", file.name)
    (tmp_path / "dist").mkdir()
    shutil.copy(file, tmp_path / "dist")
    venv = install(f"PIP_NO_DEPS=1 {line.replace(named[1], file.name)}", tmp_path)
    script = "from importlib.metadata import version; print(version('stoker'))"
    done = subprocess.run([venv / "bin/python", "-c", script], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert done.stdout.strip() == wheel.wheel_version(file) and (venv / "bin/stoker").exists()


@pytest.mark.sweep  # each builds a wheel, and the first two download what it depends on: a minute
@pytest.mark.timeout(900)
@pytest.mark.parametrize("line", [line for line in documented_installs() if "dist/" not in line])
def test_the_documented_installs_from_the_folder_work(taken: source.Source, tmp_path: Path, line: str) -> None:
    """PyTorch and its CUDA parts, 5 GB, are left out with all the rest of what `trainer` depends on."""
    shutil.copytree(taken.root, tmp_path, dirs_exist_ok=True)
    venv = install(f"{line} --no-deps" if "trainer" in line else line, tmp_path)
    if "trainer" not in line:
        said = subprocess.run([venv / "bin/stoker", "--version"], capture_output=True, text=True, timeout=60)
        assert said.stdout.startswith("stoker "), said.stderr
    if line.endswith("'.[up]'"):
        script = "import fastapi, uvicorn, stoker.cli.up"
        subprocess.run([venv / "bin/python", "-c", script], check=True, timeout=60, cwd=tmp_path.parent)
    assert (venv / "bin/stoker").exists()


@pytest.mark.slow
def test_every_extra_resolves(built: Path, taken: source.Source) -> None:
    extras = tomllib.loads((taken.root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = f"stoker[{','.join(extras)}] @ {wheel.wheel_file(built).as_uri()}"
    said = uv("pip", "install", "--dry-run", "--reinstall", "--python", sys.executable, "--system", asked)
    for name in ("torch", "fastapi", "numpy", "kubernetes"):
        assert f" + {name}==" in said, said
