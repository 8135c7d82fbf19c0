"""A job's own packages: installed once for those who list the same, refused with the reason, removed when unused."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from stoker_worker import install
from stoker_worker.environments import IN_USE_S, MARK, Environments
from tests.support.wheels import make_wheel

from .conftest import PROGRAM

BY_PIP = pytest.mark.skipif(find_spec("pip") is None, reason="an environment that uv made has no pip")
SAY = "import tinypkg; print(tinypkg.WORD)"


class Installer:
    """The process that a supervisor starts, on one list of a folder of code."""

    def __init__(self, folder, wheels):
        self.folder, self.wheels, self.root = folder, wheels, folder / "environments"
        self.code = folder / "code"
        self.code.mkdir()

    def start(self, name="requirements.txt", **env):
        variables = {
            "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "STOKER_REQUIREMENTS": name,
            "STOKER_ENVIRONMENTS_DIR": str(self.root),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "UV_OFFLINE": "1",
            "UV_FIND_LINKS": str(self.wheels),
            **env,
        }
        argv = [sys.executable, "-I", "-S", str(PROGRAM), "--install", str(self.folder), str(os.getpid())]
        return subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, requirements=None, name="requirements.txt", **env):
        if requirements is not None:
            (self.code / name).parent.mkdir(exist_ok=True)
            (self.code / name).write_text(requirements)
        process = self.start(name, **env)
        said = process.communicate(timeout=60)[0]
        return process.returncode, said

    @property
    def place(self):
        return json.loads((self.folder / "environment.json").read_text())["path"]

    def python(self, script, **env):
        done = subprocess.run([self.place + "/bin/python", "-c", script], capture_output=True, text=True, check=True)
        return done.stdout


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    make_wheel(folder, "tinypkg", "1.0", "WORD = 'one'")
    make_wheel(folder, "tinypkg", "2.0", "WORD = 'two'")
    return folder


@pytest.fixture
def installer(tmp_path, wheels):
    folder = tmp_path / "worker"
    folder.mkdir()
    return Installer(folder, wheels)


def test_what_is_listed_is_installed_once_and_beside_what_the_python_has(installer, wheels):
    digest = hashlib.sha256((wheels / "tinypkg-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    code, said = installer.run(f"tinypkg==1.0 --hash=sha256:{digest}\n")
    assert code == 0, said
    assert "[stoker] environment: installing requirements.txt" in said and "kept for the project's later jobs" in said
    place = installer.place
    assert installer.python(SAY) == "one\n"
    assert installer.python("import pydantic, sys; print(sys.prefix != sys.base_prefix)") == "True\n", "of its parent"
    command = subprocess.run([place + "/bin/tinypkg-say"], capture_output=True, text=True, check=True)
    assert command.stdout == "command one\n", "its first line names where it is"
    code, said = installer.run()
    assert (code, said) == (0, "[stoker] environment: requirements.txt, installed before\n")
    assert installer.place == place
    assert installer.run("tinypkg==2.0\n")[0] == 0 and installer.place != place
    assert installer.python(SAY) == "two\n"
    assert subprocess.run([place + "/bin/python", "-c", SAY], capture_output=True, text=True).stdout == "one\n"


@BY_PIP
def test_of_workers_that_begin_at_once_one_installs(installer, tmp_path):
    (installer.code / "requirements.txt").write_text("tinypkg\n")
    others = []
    for number in range(3):
        folder = tmp_path / f"other-{number}"
        shutil.copytree(installer.folder, folder)
        other = Installer.__new__(Installer)
        other.folder, other.wheels, other.root, other.code = folder, installer.wheels, installer.root, folder / "code"
        others.append(other)
    running = [one.start() for one in others]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert sum("installing requirements.txt\n[" not in text and "Successfully installed" in text for text in said) == 1
    assert len({one.place for one in others}) == 1
    assert len([name for name in os.listdir(installer.root) if not name.startswith(".")]) == 2, "one, and its name"


def test_files_that_it_includes_count_and_what_is_no_package_is_refused(installer):
    (installer.code / "base.txt").write_text("tinypkg==1.0\n")
    (installer.code / "requirements.txt").write_text("-r base.txt\n-c base.txt\n")
    job = install.Installation(str(installer.code), "requirements.txt", str(installer.root), 0)
    assert job._contents() == [b"-r base.txt\n-c base.txt\n", b"tinypkg==1.0\n"]
    for line in ("-e .", ".", "./sub", "tiny @ file:///tmp/x", "/opt/x.whl"):
        code, said = installer.run(f"tinypkg\n{line}\n")
        assert code == 1 and f"names a folder or file ({line})" in said
    code, said = installer.run("-r ../../secret.txt\n")
    assert code == 1 and "../../secret.txt lies outside the job's code" in said
    code, said = installer.run("-r none.txt\n")
    assert code == 1 and "none.txt: No such file or directory" in said


def test_a_hash_that_differs_is_refused_and_nothing_is_kept(installer):
    code, said = installer.run(f"tinypkg==1.0 --hash=sha256:{'0' * 64}\n")
    assert code == 1
    assert said.splitlines()[-1].startswith(
        "[stoker] can't install requirements.txt: a package is not the one of the list"
    )
    assert [name for name in os.listdir(installer.root) if not name.startswith(".")] == []


@BY_PIP
def test_an_index_that_can_t_be_reached_is_explained(installer):
    closed = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}
    code, said = installer.run("tinypkg\n", **closed, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    last = said.splitlines()[-1]
    assert code == 1 and "the package index can't be reached, or does not have it" in last and "PIP_INDEX_URL" in last


def test_a_lock_of_uv_is_installed_as_it_stands(installer, wheels):
    """Made by uv itself, of the wheels here."""
    project = installer.code / "sub"
    project.mkdir()
    text = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = ["tinypkg<2"]\n'
    (project / "pyproject.toml").write_text(text)
    uv = os.path.join(os.path.dirname(sys.executable), "uv")
    offline = {**os.environ, "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels), "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([uv, "lock", "--python", sys.executable], cwd=project, env=offline, capture_output=True, check=True)
    shutil.copy(project / "uv.lock", installer.folder / "before")
    found = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels)}
    code, said = installer.run(name="sub/uv.lock", **found)
    assert code == 0, said
    assert installer.python(SAY) == "one\n"
    assert (project / "uv.lock").read_bytes() == (installer.folder / "before").read_bytes()
    code, said = installer.run(name="sub/uv.lock", PATH="/nowhere:" + _python_alone(installer.folder))
    assert code == 1 and "that takes uv, which is not there" in said


def _python_alone(folder):
    place = folder / "bin"
    place.mkdir()
    (place / "python").symlink_to(sys.executable)
    return str(place)


def test_without_python_or_room_for_its_name_it_is_said(installer):
    code, said = installer.run("tinypkg\n", PATH="/nowhere")
    assert code == 1 and "there is no python in PATH (/nowhere)" in said
    (installer.folder / "environments").write_text("a file")
    code, said = installer.run("tinypkg\n")
    assert code == 1 and "environments: " in said


def test_what_was_used_least_goes_when_there_is_too_much_but_nothing_in_use(installer):
    places = []
    for number in range(3):
        place = installer.root / f"{number}{'0' * 31}-00000000"
        place.mkdir(parents=True)
        (place / MARK).write_text("home = /usr/bin\n")
        (installer.root / f"{number}{'0' * 31}").symlink_to(place.name)
        places.append(place)
    old = time.time() - 2 * IN_USE_S
    for age, place in enumerate(reversed(places)):
        os.utime(os.path.join(place, MARK), (old - age, old - age))
    torn = installer.root / ("f" * 32 + "-00000000")
    torn.mkdir()
    os.utime(torn, (0, 0))
    with open(os.path.join(places[0], MARK)) as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # as a supervisor does
        assert installer.run("tinypkg==2.0\n", STOKER_ENVIRONMENTS_BYTES="20")[0] == 0
    assert [os.path.exists(place) for place in places] == [True, False, False]
    assert sorted(path.name for path in installer.root.iterdir() if path.is_symlink())[0] == "0" * 32
    assert not torn.exists()
    assert installer.python(SAY) == "two\n"


def test_a_link_that_leads_elsewhere_is_not_followed(tmp_path):
    kept, key = Environments(str(tmp_path / "kept"), 0), "a" * 32
    for place in (tmp_path / "elsewhere", tmp_path / "kept" / f"{key}-1"):
        place.mkdir(parents=True)
        (place / MARK).touch()
    for target in (
        str(tmp_path / "elsewhere"),
        "../elsewhere",
        f"{key}-1/../../elsewhere",
        f"{key}-2",
        "b" * 32 + "-1",
    ):
        (tmp_path / "kept" / key).symlink_to(target)
        assert kept.find(key) is None
        with pytest.raises(FileExistsError):
            kept.publish(key, str(tmp_path / "kept" / f"{key}-1"))
        (tmp_path / "kept" / key).unlink()
    kept.publish(key, str(tmp_path / "kept" / f"{key}-1"))
    assert kept.find(key) == str(tmp_path / "kept" / f"{key}-1")
