"""A job's data on real nodes: fetched by url before its workers start, offered by the runtime, and not there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import Project
from tests.support.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

READ = """
import os
for name in ("URL", "OFFERED"):
    folder = os.environ["STOKER_DATA_" + name]
    for file in sorted(os.listdir(folder)):
        if not file.startswith("."):
            print(name, folder, file, open(os.path.join(folder, file)).read(), flush=True)
    try:
        open(os.path.join(folder, "new"), "w")
    except OSError as error:
        print(name, "can't be written:", error.strerror, flush=True)
"""


@pytest.fixture
def runtime(project: Project) -> Iterator[str]:
    """It offers data by name, of a volume that *restricted* admits."""
    name = f"offers-{project.name}"
    project.stack.bed.kubectl("create", "configmap", "sets", "-n", project.name, "--from-literal=train.txt=offered")
    offered = {"name": "sets", "source": {"configMap": {"name": "sets"}}}
    project.stack.put_runtime(name, {"imagePullPolicy": "Never", "defaultFor": [project.name], "data": [offered]})
    yield name
    project.stack.bed.kubectl("delete", "trainingruntime", name)


def test_data_by_url_and_by_name_reaches_both_workers(project: Project, runtime: str) -> None:
    url = f"{project.stack.url}/version"
    spec = {
        "memory": "128Mi",
        "workers": 2,
        "data": [{"name": "url", "url": url}, {"name": "offered", "path": "sets"}],
        "trainer": {"image": project.stack.images["foreign-python"], "command": ["python3", "-c", READ]},
    }
    until(lambda: project.client.submit(spec, name="reads"), "the api knows the runtime")
    project.until_phase("reads", Phase.SUCCEEDED)
    for worker in (0, 1):
        said = project.stoker("logs", "reads", "--worker", str(worker)).stdout
        assert 'URL /data/url version {"' in said and "OFFERED /data/offered train.txt offered" in said, said
        assert said.count("can't be written: Read-only file system") == 2, said


def test_data_that_is_not_there_fails_by_a_category_of_its_own(project: Project) -> None:
    spec = {
        "memory": "128Mi",
        "data": [{"name": "gone", "url": f"{project.stack.url}/nothing-here?Signature=secret"}],
        "trainer": {"image": project.stack.images["foreign-python"], "command": ["true"]},
    }
    project.client.submit(spec, name="gone")
    until(lambda: project.job("gone").status.attempts, "its first attempt's end", timeout_s=120)
    end = project.job("gone").status.attempts[0]
    assert end.category == "DataUnavailable" and "/nothing-here?…: 404" in end.message, end.message
    assert "Signature=secret" not in json.dumps(end.model_dump(mode="json"))
