"""`run` and `submit` ship the caller's folder: which jobs, which folder, which program is meant, what is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stoker.cli.main import cli
from stoker.client.code.bundle import read_folder
from stoker.client.config import Endpoint

JOBS = "/v1/projects/default/jobs"
CLUSTER = {"version": "1", "apiVersion": "stoker.dev/v1alpha1", "mode": "Cluster"}


@pytest.fixture(params=["here", "cluster"])
def where(request: pytest.FixtureRequest, script: Any) -> str:
    """A server on this machine (one that doesn't say is taken for it), and a cluster behind a port-forward."""
    if request.param == "cluster":
        script.on("GET", "/version", script.json(CLUSTER))
    return request.param


@pytest.fixture
def submit(script: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STOKER_SERVER", script.url)
    script.on("POST", JOBS, script.json(make_job("train-1"), 201))

    def run(*args: str, **more: Any) -> Result:
        return CliRunner().invoke(cli, ["submit", *args], **more)

    return run


@pytest.fixture
def project() -> Path:
    folder = Path.cwd()
    (folder / "train.py").write_text("print(42)\n")
    (folder / "sub").mkdir()
    for name in ("train.sh", "sub/go"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def _trainer(script: Any) -> dict[str, Any]:
    trainer = script.posted[-1].body["spec"]["trainer"]
    assert isinstance(trainer, dict)
    return trainer


def test_a_command_goes_with_the_current_folder_wherever_the_server_is(
    submit: Any, script: Any, project: Path, where: str
) -> None:
    digest = read_folder(project).digest
    result = submit("--", sys.executable, "train.py")
    assert (result.exit_code, result.stdout) == (0, "train-1\n")
    assert _trainer(script) == {"command": [sys.executable, "train.py"], "code": digest}
    assert result.stderr.startswith("code: 3 files, 30 B (") and result.stderr.endswith(" sent)\n")
    assert script.code.tree(digest)["train.py"] == b"print(42)\n"
    again = submit("--", sys.executable, "train.py")
    assert again.stderr == "code: 3 files, 30 B (nothing sent)\n"


def test_a_file_s_command_goes_with_the_current_folder_too_and_is_sent_once(
    submit: Any, script: Any, project: Path, tmp_path: Path, where: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "spec: {trainer: {command: [sh, train.sh]}}\n---\n"
        "spec: {trainer: {recipe: image-classification}}\n---\n"
        "spec: {trainer: {command: [sh, -c, ls]}}\n"
    )
    assert submit("-f", str(path)).exit_code == 0
    digest = read_folder(project).digest
    sent = [request.body["spec"]["trainer"].get("code") for request in script.posted]
    assert sent == [digest, None, digest]
    assert script.code.requests == ["GET", "PUT", "POST", "PUT"]


@pytest.mark.parametrize("given", ["workingDir: /srv", f"code: 'sha256:{'0' * 64}'"])
def test_a_job_that_says_where_it_starts_is_left_alone(
    submit: Any, script: Any, project: Path, where: str, given: str
) -> None:
    text = f"spec: {{trainer: {{command: [{sys.executable}, x.py], {given}}}}}"
    assert submit("-f", "-", input=text).exit_code == 0
    name, _, value = given.replace("'", "").partition(": ")
    assert _trainer(script) == {"command": [sys.executable, "x.py"], name: value}
    assert script.code.requests == []


def test_another_folder_is_shipped_and_a_place_in_it_kept(
    submit: Any, script: Any, project: Path, tmp_path: Path, where: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.py").write_text("")
    text = f"spec: {{trainer: {{command: [{sys.executable}, x.py], workingDir: src}}}}"
    assert submit("-f", "-", "--code", "../other", input=text).exit_code == 0
    assert _trainer(script)["code"] == read_folder(other).digest
    assert _trainer(script)["workingDir"] == "src"


def test_nothing_is_shipped_if_so_said(submit: Any, script: Any, project: Path, where: str) -> None:
    result = submit("--no-code", "--", sys.executable, "train.py")
    assert result.exit_code == 0 and "code" not in result.stderr
    expected: dict[str, Any] = {"command": [sys.executable, "train.py"]}
    assert _trainer(script) == (expected | {"workingDir": str(project)} if where == "here" else expected)
    assert script.code.requests == []


def test_on_this_machine_a_program_is_the_user_s_own_or_the_shipped_one(
    submit: Any, script: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "bin"
    own.mkdir()
    (own / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(own))
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/pyvenv.cfg").write_text("")
    (project / ".venv/bin/python").symlink_to(sys.executable)

    def program(word: str, *options: str) -> str:
        result = submit(*options, "--", word, "train.py")
        assert result.exit_code == 0, result.stderr
        return str(_trainer(script)["command"][0])

    assert program("python") == str(own / "python")
    assert program("./train.sh") == "./train.sh"
    assert program("sub/go") == "sub/go"
    assert program("./go", "--code", "sub") == "./go"
    assert program(".venv/bin/python") == str(project / ".venv/bin/python"), "it is not shipped"
    assert program("../bin/python") == str(own / "python")
    assert program("./go", "--code", "sub", "--set", "spec.trainer.workingDir=.") == "./go"
    missing = submit("--", "./nothing")
    assert (missing.exit_code, "there is no program './nothing' here" in missing.stderr) == (2, True)
    assert "code:" not in missing.stderr, "and nothing was sent for it"


def test_a_shipped_program_that_is_none_is_refused_before_it_is_sent(
    submit: Any, script: Any, project: Path, where: str
) -> None:
    result = submit("--", "./train.py")
    assert result.exit_code == 2
    assert "train.py is not executable; run `chmod +x train.py`, or name its interpreter before it" in result.stderr
    assert script.code.requests == [] and script.posted == []


def test_a_dry_run_checks_the_folder_and_sends_nothing(submit: Any, script: Any, project: Path, where: str) -> None:
    result = submit("--dry-run", "--", sys.executable, "train.py")
    assert (result.exit_code, result.stdout) == (0, "train-1 (dry run: it would be accepted)\n")
    assert result.stderr == "code: 3 files, 30 B (dry run: not sent, and not in the job shown)\n"
    assert script.posted[-1].query == {"dryRun": "true"} and "code" not in _trainer(script)
    assert script.code.requests == []
    (project / "link").symlink_to("/etc")
    assert "link: it is a symbolic link to /etc" in submit("--dry-run", "--", sys.executable).stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--code", ".", "--no-code", "--", "sh"], "give either --code FOLDER or --no-code"),
        (["--code", "gone", "--", "sh"], "can't ship the folder gone: No such file or directory"),
        (["--code", ".", "-f", "recipe.yaml"], "--code goes with a command"),
        (["--code", ".", "-f", "coded.yaml"], "names trainer.code already"),
    ],
)
def test_wrong_usage(submit: Any, script: Any, project: Path, args: list[str], says: str) -> None:
    (project / "recipe.yaml").write_text("spec: {trainer: {recipe: image-classification}}\n")
    (project / "coded.yaml").write_text(f"spec: {{trainer: {{command: [sh], code: 'sha256:{'0' * 64}'}}}}\n")
    result = submit(*args)
    assert result.exit_code == 2 and says in result.stderr
    assert script.requests == []


def test_the_home_folder_is_no_project(
    submit: Any, script: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    result = submit("--", "sh")
    assert result.exit_code == 2 and "your home folder is not shipped as code" in result.stderr
    assert submit("--no-code", "--", "sh").exit_code == 0


@pytest.mark.parametrize("command", ["python train.py", "[]", "[1, x]", "{}"])
def test_what_is_no_command_is_left_to_the_server(submit: Any, script: Any, project: Path, command: str) -> None:
    assert submit("-f", "-", input=f"spec: {{trainer: {{command: {command}}}}}").exit_code == 0
    assert script.code.requests == [] and len(script.posted) == 1


def test_a_removed_folder_is_shown(submit: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current folder was removed" in submit("--", "sh").stderr
    monkeypatch.chdir(project)


def test_a_far_server_gets_the_arguments_as_they_are(
    submit: Any, script: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "loopback", property(lambda _: False))
    assert submit("--", "python", "train.py").exit_code == 0
    assert _trainer(script) == {"command": ["python", "train.py"], "code": read_folder(project).digest}
    assert not any(request.path == "/version" for request in script.requests)


def test_what_is_left_out_is_shown_and_goes_with_the_job(submit: Any, script: Any, project: Path, where: str) -> None:
    (project / "data").mkdir()
    (project / ".gitignore").write_text("data/\n")
    result = submit("--", sys.executable, "train.py")
    assert result.exit_code == 0 and result.stderr.endswith(" sent) · left out: data/ (.gitignore)\n")
    assert _trainer(script)["leftOut"] == [{"path": "data/", "by": ".gitignore:1"}]


def test_an_editable_install_of_the_folder_runs_its_copy_wherever_the_server_is(
    submit: Any, script: Any, project: Path, where: str
) -> None:
    (project / "src/mypkg").mkdir(parents=True)
    (project / "src/mypkg/__init__.py").write_text("")
    venv = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "mypkg.pth").write_text(f"{project}/src\n")
    result = submit("--env", "VIRTUAL_ENV=/own", "--", str(venv / "bin/python"), "train.py")
    assert _trainer(script)["pythonPath"] == ["src"]
    assert script.posted[-1].body["spec"]["env"] == {"VIRTUAL_ENV": "/own"}, "what is given stays"
    if where == "here":
        assert f"environment: {venv}, imports from the copy first (src)\n" in result.stderr
        submit("--", str(venv / "bin/python"), "train.py")
        assert script.posted[-1].body["spec"]["env"] == {"VIRTUAL_ENV": str(venv)}
    text = f"spec: {{trainer: {{command: [{venv}/bin/python, x.py], pythonPath: [.]}}}}"
    submit("-f", "-", input=text)
    assert _trainer(script)["pythonPath"] == ["."]
    submit("--dry-run", "--", str(venv / "bin/python"), "train.py")
    assert "pythonPath" not in _trainer(script), "which goes with code"


def test_a_lock_file_that_uv_brings_up_to_date_is_the_one_that_is_shipped(
    submit: Any, script: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"UV_OFFLINE": "1", "UV_PYTHON": sys.executable, "UV_NO_CONFIG": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (project / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\n')
    uv = str(Path(sys.executable).with_name("uv"))
    result = submit("--", uv, "run", "train.py")
    trainer = _trainer(script)
    assert trainer["command"] == [str(project / ".venv/bin/python"), "train.py"], result.stderr
    assert script.code.tree(trainer["code"])["uv.lock"] == (project / "uv.lock").read_bytes()
