"""The environment that a command is submitted from: launchers, editable installs, and what the job gets of them.

The interpreters are real virtual environments; the files of an install are those that the build back ends write
(setuptools 80, hatchling 1.30, flit 3.12, poetry-core 2.2, scikit-build-core 0.12).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.client.code.bundle import read_folder
from stoker.client.environment.environments import Environment, Environments
from stoker.client.environment.launchers import Launched, Opaque, launcher_of, take_apart

UV = str(Path(sys.executable).with_name("uv"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for path in ("src/mypkg/__init__.py", "flat/__init__.py", "train.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("NAME = 'x'\n")
    (folder / ".gitignore").write_text("*.so\n/build/\n/.venv/\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    return folder


def install(project: Path, files: dict[str, str], of: str = "", *, name: str = "mypkg") -> None:
    """Lay down what an editable install does: the files, and the distribution's own folder with its origin."""
    (packages,) = (project / ".venv/lib").glob("python3*/site-packages")
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    origin = {"dir_info": {"editable": True}, "url": f"file://{project}/{of}".rstrip("/")}
    (info / "direct_url.json").write_text(json.dumps(origin))
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file, text in files.items():
        (packages / file).write_text(text)


def look(project: Path, *command: str) -> Environment:
    return Environments(read_folder(project)).here(command or (str(project / ".venv/bin/python"), "train.py"), "")


FINDER = """import sys
MAPPING: dict[str, str] = {mapping}
class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None
def install():
    sys.meta_path.{where}
"""
LAST, FIRST = "append(_EditableFinder)", "insert(0, _EditableFinder)"


def hook(mapping: dict[str, str], where: str = LAST) -> dict[str, str]:
    name = "__editable___mypkg_1_0_finder"
    return {
        "__editable__.mypkg-1.0.pth": f"import {name}; {name}.install()",
        f"{name}.py": FINDER.format(mapping=mapping, where=where),
    }


def test_a_path_of_the_shipped_folder_is_the_copy_s(project: Path) -> None:
    install(project, {"_editable_impl_mypkg.pth": f"{project}/src\n"})
    found = look(project)
    assert (found.python_path, found.warnings) == (("src",), ())
    assert found.variables == {"VIRTUAL_ENV": str(project / ".venv")}
    assert found.says == f"{project}/.venv, imports from the copy first (src)"


def test_the_whole_folder_and_two_packages_of_a_workspace_keep_their_order(project: Path) -> None:
    install(project, {"b.pth": f"{project}/src\n"}, "src", name="b")
    install(project, {"a.pth": f"{project}\n"}, name="a")
    assert look(project).python_path == (".", "src")


def test_a_hook_behind_all_paths_is_followed_by_its_modules(project: Path) -> None:
    install(project, hook({"flat": f"{project}/flat", "mypkg": f"{project}/src/mypkg"}))
    assert (look(project).python_path, look(project).warnings) == ((".", "src"), ())


def test_a_module_of_another_name_can_t_be_led_to_the_copy(project: Path) -> None:
    install(project, hook({"other": f"{project}/src/mypkg"}))
    found = look(project)
    assert found.python_path == ()
    place = f"{project}/src/mypkg"
    assert found.warnings == (
        f"the job imports {place} as it is by then, not as it was submitted: the module is called other there",
    )


def test_a_hook_before_all_paths_can_t_either(project: Path) -> None:
    install(project, {**hook({"mypkg": f"{project}/src/mypkg"}, FIRST), "mypkg.pth": f"{project}/src\n"})
    found = look(project)
    assert found.python_path == ()
    assert found.warnings[0].endswith("mypkg is found by a hook of its own, not by a path")


def test_a_compiled_module_that_is_left_out_keeps_its_package_where_it_is(project: Path) -> None:
    install(project, {"mypkg.pth": f"{project}/src\n"})
    (project / "src/mypkg/_C.abi3.so").write_bytes(b"\x7fELF")
    found = look(project)
    assert found.python_path == ()
    assert "its compiled module src/mypkg/_C.abi3.so is left out of the copy" in found.warnings[0]
    (project / ".stokerignore").write_text("!*.so\n")
    assert (look(project).python_path, look(project).warnings) == (("src",), ())


def test_a_folder_that_is_left_out_is_reported(project: Path) -> None:
    (project / "build/links/mypkg").mkdir(parents=True)
    install(project, {"mypkg.pth": f"{project}/build/links\n"})
    assert "it is left out of the copy" in look(project).warnings[0]


def test_what_lies_elsewhere_or_is_the_environment_s_own_is_left_as_it_is(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project / ".venv/more").mkdir()
    install(project, {"x.pth": f"{tmp_path}/elsewhere\n{project}/.venv/more\n"}, "../elsewhere")
    found = look(project)
    assert (found.python_path, found.warnings, found.says) == ((), (), "")


def test_a_script_s_first_line_names_its_python(project: Path) -> None:
    install(project, {"mypkg.pth": f"{project}/src\n"})
    script = project / ".venv/bin/torchrun"
    for first in (f"#!{project}/.venv/bin/python", f'#!/bin/sh\n\'\'\'exec\' "{project}/.venv/bin/python" "$0" "$@"'):
        script.write_text(f"{first}\n")
        script.chmod(0o755)
        assert look(project, str(script), "train.py").python_path == ("src",)


def test_a_shell_script_means_the_python_that_is_active(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(project, {"mypkg.pth": f"{project}/src\n"})
    monkeypatch.setenv("PATH", f"{project}/.venv/bin:/usr/bin:/bin")
    found = look(project, "bash", "train.sh")
    assert (found.command, found.python_path) == (("bash", "train.sh"), ("src",))
    assert found.variables == {"VIRTUAL_ENV": str(project / ".venv")}


def test_a_python_that_does_not_answer_gives_nothing(project: Path) -> None:
    python = project / ".venv/bin/python3.99"
    for body in ("exit 3", "echo stoker-environment:[]", "echo 'stoker-environment:{\"path\": 3}'"):
        python.write_text(f"#!/bin/sh\n{body}\n")
        python.chmod(0o755)
        assert look(project, str(python), "x.py") == Environment((str(python), "x.py"))


def test_a_cluster_gets_the_folders_and_no_variable(project: Path) -> None:
    install(project, {"mypkg.pth": f"{project}/src\n"})
    for command in (("uv", "run", "train.py"), (f"{project}/.venv/bin/python", "train.py")):
        found = Environments(read_folder(project)).elsewhere(command)
        says = "the image's; imports from the copy first (src)"
        assert found == Environment(command, python_path=("src",), says=says)


def test_on_a_cluster_it_is_reported_that_the_folder_s_packages_are_not_installed(project: Path) -> None:
    command = (f"{project}/.venv/bin/python", "train.py")
    assert Environments(read_folder(project)).elsewhere(command).says == ""
    (project / "requirements.txt").write_text("rich\n")
    found = Environments(read_folder(project)).elsewhere(command)
    assert found.says == "the image's; requirements.txt is not installed (--install does that)"


@pytest.mark.parametrize(
    ("line", "launcher", "command"),
    [
        ("uv run train.py --lr 1", "uv run", "python train.py --lr 1"),
        ("uv run python train.py", "uv run", "python train.py"),
        ("/x/uv run --locked --group=a -p 3 -- torchrun a", "/x/uv run --locked --group=a -p 3", "torchrun a"),
        ("uv run -m my.train -x", "uv run", "python -m my.train -x"),
        ("poetry run python train.py", "poetry run", "python train.py"),
        ("conda run --live-stream -n ml python train.py", "conda run --live-stream -n ml", "python train.py"),
        ("pixi run -e cuda train", "pixi run -e cuda", "train"),
    ],
)  # fmt: skip
def test_a_launcher_s_arguments(line: str, launcher: str, command: str, tmp_path: Path) -> None:
    assert take_apart(line.split(), str(tmp_path)) == Launched(tuple(launcher.split()), tuple(command.split()))


@pytest.mark.parametrize("line", ["uv run --with rich train.py", "uv run", "poetry run -C x y", "uv run own.py"])
def test_what_only_the_launcher_can_do(line: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("# /// script\n# dependencies = ['rich']\n# ///\n")
    with pytest.raises(Opaque):
        take_apart(line.split(), str(tmp_path))


def test_what_is_no_launcher() -> None:
    assert [launcher_of(line.split()) for line in ("uv sync", "uvx run x", "python run", "/x/uv run y")] == [
        *([None] * 3),
        "uv",
    ]


@pytest.fixture
def uv_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"UV_OFFLINE": "1", "UV_PYTHON": sys.executable, "UV_NO_CONFIG": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (project / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\n')
    return project


def test_uv_run_becomes_the_environment_s_own_program(uv_project: Path) -> None:
    venv = uv_project / ".venv"
    found = look(uv_project, UV, "run", "train.py", "--lr", "1")
    assert found.command == (str(venv / "bin/python"), "train.py", "--lr", "1")
    assert (found.variables, found.says, found.launched) == ({"VIRTUAL_ENV": str(venv)}, str(venv), True)
    assert look(uv_project, UV, "run", "bash", "x.sh").command == ("bash", "x.sh")


def test_what_only_uv_can_do_runs_uv_with_the_project_s_environment(uv_project: Path) -> None:
    venv = str(uv_project / ".venv")
    found = look(uv_project, UV, "run", "--with", "rich", "train.py")
    assert found.command == (UV, "run", "--with", "rich", "train.py")
    assert found.variables == {"VIRTUAL_ENV": venv, "UV_PROJECT_ENVIRONMENT": venv, "UV_NO_SYNC": "1"}
    assert found.warnings[0].startswith("only uv itself knows what `uv run --with` does, so uv itself runs in the job")


def test_a_launcher_that_does_not_work_here_is_reported_to_make_its_environment_in_the_job(project: Path) -> None:
    missing = str(project / "no/poetry")
    found = look(project, missing, "run", "python", "train.py")
    assert found.command == (missing, "run", "python", "train.py") and not found.variables
    assert f"`{missing} run python` does not work here, so poetry itself runs in the job" in found.warnings[0]
