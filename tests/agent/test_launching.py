"""Where a worker's command starts: within the code it fetches, in the folder the job names, or in its output folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.local.agent.launching import compose_launch, parse_pod
from stoker.local.agent.leases import WorkerLease
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import LABEL_JOB_UID
from stoker.spec.pod import Container, EnvVar, Pod, PodSpec

ENV = {
    "STOKER_JOB": "one", "STOKER_ATTEMPT": "1", "STOKER_WORKER": "0", "STOKER_WORKERS": "1",
    "STOKER_LAUNCH_MODE": "once", "STOKER_RANKS": "1",
}  # fmt: skip
CODE = {"STOKER_CODE": "sha256:" + "0" * 64}


def compose(env, working_dir=None, **more):
    variables = tuple(EnvVar(name=name, value=value) for name, value in {**ENV, **env}.items())
    container = Container(command=("python", "train.py"), working_dir=working_dir, env=variables)
    meta = ObjectMeta(name="one-1-0", namespace="p", uid="u", labels={LABEL_JOB_UID: "j"})
    return compose_launch(
        parse_pod(Pod(metadata=meta, spec=PodSpec(containers=(container,)))),
        WorkerLease((), False, 1234, 0),
        folder=Path("/workers/u"),
        job_folder=Path("/jobs/j"),
        report=None,
        log_bytes=7,
        **{"host_env": {"PATH": "/usr/bin"}, **more},
    )


@pytest.mark.parametrize(
    ("env", "working_dir", "expected"),
    [
        ({}, None, "/jobs/j/output"),
        ({}, "/home/me/project", "/home/me/project"),
        ({"STOKER_INIT_FROM": "../other/output/best.pt"}, None, "/jobs/j/output"),
        ({"STOKER_INIT_FROM": "/jobs/other/output/best.pt"}, None, "/jobs/j/output"),
        (CODE, None, "/workers/u/code"),
        (CODE, "src/train", "/workers/u/code/src/train"),
    ],
)
def test_the_folder_a_command_starts_in(env, working_dir, expected):
    launch = compose(env, working_dir)
    assert (launch.working_dir, launch.log_bytes) == (expected, 7)
    assert launch.env.get("STOKER_CODE") == env.get("STOKER_CODE")
    assert launch.env.get("STOKER_INIT_FROM") == ("/jobs/other/output/best.pt" if "STOKER_INIT_FROM" in env else None)


def test_python_looks_into_the_copy_first_where_the_job_says_so():
    env = compose({**CODE, "STOKER_PYTHON_PATH": "src:.", "PYTHONPATH": "/opt/x"}).env
    assert env["PYTHONPATH"] == "/workers/u/code/src:/workers/u/code:/opt/x"
    assert "PYTHONPATH" not in compose(CODE).env


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_environment_that_is_named_is_active(name):
    usual = compose({}).env["PATH"]
    assert usual.endswith(":/usr/bin")
    assert compose({name: "/home/me/.venv"}).env["PATH"] == f"/home/me/.venv/bin:{usual}"
    assert compose({name: "/home/me/.venv", "PATH": "/mine"}).env["PATH"] == "/mine"


def test_a_worker_inherits_a_few_names_and_those_that_are_passed():
    host = {"PATH": "/usr/bin", "HOME": "/home/me", "HF_HOME": "/models", "HF_TOKEN": "s3cr3t"}
    env = compose({}, host_env=host, pass_env=("HF_HOME", "http_proxy")).env
    assert (env["HOME"], env["HF_HOME"]) == ("/home/me", "/models")
    assert not env.keys() & {"HF_TOKEN", "http_proxy"}
    assert compose({"HF_HOME": "/mine"}, host_env=host, pass_env=("HF_HOME",)).env["HF_HOME"] == "/mine"
