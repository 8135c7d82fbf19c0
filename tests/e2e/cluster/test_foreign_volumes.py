"""Images whose user is root and volumes of another's UID, under *restricted*: they train, or say what to set."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import Project, Stack

pytestmark = pytest.mark.e2e
OWNER = 4321

PROBE = """\
import os, tempfile
print("uid", os.getuid())
for name in ("HOME", "TMPDIR"):
    folder = os.environ.get(name) or tempfile.gettempdir()
    open(os.path.join(folder, "cache"), "w").write("kept")
os.makedirs(os.path.expanduser("~/.cache/torch"), exist_ok=True)
open(os.path.join(os.environ["STOKER_OUTPUT_DIR"], "result"), "w").write("done")
"""


@pytest.fixture
def strict(stack: Stack) -> Iterator[Project]:
    """A project whose checkpoint volume belongs to another user, and to no one else."""
    project = stack.project(f"team-{uuid.uuid4().hex[:6]}", owner=OWNER)
    yield project
    project.client.close()
    stack.bed.kubectl("delete", "namespace", project.name, "--wait=true", "--timeout=60s", timeout_s=70)


def _probe(project: Project, name: str, phase: Phase) -> str:
    project.client.submit(
        {
            "memory": "128Mi",
            "trainer": {"image": project.stack.images["foreign-root"], "command": ["python3", "-c", PROBE]},
        },
        name=name,
    )
    job = project.until_phase(name, phase)
    return project.log(name, 1) + job.status.message


def test_a_root_image_runs_as_the_runtimes_user(project: Project) -> None:
    said = _probe(project, "root-image", Phase.SUCCEEDED)
    assert "uid 65532" in said


def test_a_volume_of_another_user_names_the_fix_and_works_with_it(stack: Stack, strict: Project) -> None:
    said = _probe(strict, "without", Phase.FAILED)
    assert "runAsUser" in said and str(OWNER) in said, said
    runtime = f"for-{strict.name}"
    stack.put_runtime(
        runtime,
        {
            "imagePullPolicy": "Never",
            "checkpoints": {"claim": "checkpoints"},
            "defaultFor": [strict.name],
            "security": {"runAsUser": OWNER, "runAsGroup": OWNER, "fsGroup": OWNER},
        },
    )
    try:
        assert f"uid {OWNER}" in _probe(strict, "with", Phase.SUCCEEDED)
        results = list((stack.bed.folder / f"shared-{strict.name}").glob("*/output/result"))
        assert [os.stat(path).st_uid for path in results] == [OWNER]
    finally:
        stack.bed.kubectl("delete", "trainingruntime", runtime)
