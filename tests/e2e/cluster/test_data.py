"""A job's data on real nodes: fetched by url before its workers start, kept in a cache, offered by the runtime, and not
there.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.fetch.cache import first_file
from stoker.spec.data import DataVolume
from stoker.spec.job import Phase
from stoker.spec.reasons import Code
from tests.local.test_fetch import Site, sha256
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


def submit(project: Project, name: str, data: list[dict[str, Any]], command: str, **spec: Any) -> None:
    trainer = {"image": project.stack.images["foreign-python"], "command": ["python3", "-c", command]}
    project.client.submit({"memory": "128Mi", "data": data, "trainer": trainer, **spec}, name=name)


SHOW = """
import os
for name in ("LINK", "DIGEST"):
    folder = os.environ["STOKER_DATA_" + name]
    print(name, *(f"{file}={open(os.path.join(folder, file)).read()}" for file in os.listdir(folder)))
    for act in (lambda: open(folder + "/new", "w"), lambda: os.chmod(folder, 0o777), lambda: os.rmdir(folder + "/..")):
        try:
            act()
        except OSError as error:
            print(error.strerror, flush=True)
print(sorted(os.listdir("/data")), os.path.exists("/fetched"), flush=True)
"""


@pytest.mark.parametrize("kind", ["claim", "hostPath"])
def test_a_gangs_data_is_fetched_once_into_the_cache_and_shown_read_only(
    project: Project, site: Site, disk: Path, kind: str
) -> None:
    """Without a digest the subPath is a link to the newest version, which the kubelet follows."""
    project.use_cache(disk if kind == "hostPath" else None)
    path = f"/{project.name}-{kind}"
    url, fixed = site.put(f"{path}/a.txt", b"one", ETag='"1"'), site.put(f"{path}/b.txt", b"fixed")
    data = [{"name": "link", "url": url}, {"name": "digest", "url": fixed, "digest": sha256(b"fixed")}]
    for number, text in enumerate((b"one", b"one", b"two")):
        site.put(f"{path}/a.txt", text, ETag=f'"{text.decode()}"')
        submit(project, f"shows-{number}", data, SHOW, workers=2)
        project.until_phase(f"shows-{number}", Phase.SUCCEEDED)
        for worker in (0, 1):
            said = project.log(f"shows-{number}", 1, worker)
            assert f"LINK a.txt={text.decode()}\n" in said and "DIGEST b.txt=fixed\n" in said, said
            assert said.count("Read-only file system") == 4 and "['digest', 'link'] False" in said, said
    # A file is asked for by HEAD first: what counts is what was sent.
    assert [site.asked.count(f"{path}/{name}.txt") for name in "ab"] == [2, 1], "six workers of three jobs"


def test_a_running_worker_holds_its_data_and_another_project_fetches_for_itself(
    project: Project, site: Site, disk: Path
) -> None:
    part = project.use_cache(disk)
    url = site.put(f"/{project.name}/held.txt", b"held")
    data = [{"name": "d", "url": url, "digest": sha256(b"held")}]
    submit(project, "holds", data, "import time; print('begun', flush=True); time.sleep(600)")
    until(lambda: project.log("holds", 1), "its command has begun", timeout_s=60)
    [file] = part.glob("data/sha256-*/held.txt")
    assert first_file(file.parent) == file
    with file.open("rb") as opened:
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        project.client.cancel("holds")
        project.until_phase("holds", Phase.CANCELLED)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other = project.stack.project(f"{project.name}-b")
    try:
        other.use_cache(disk)
        submit(other, "reads", data, "import os; print(os.listdir(os.environ['STOKER_DATA_D']))")
        other.until_phase("reads", Phase.SUCCEEDED)
        assert other.log("reads", 1) == "['held.txt']\n"
        assert site.asked.count(f"/{project.name}/held.txt") == 2
    finally:
        other.client.close()
        project.stack.bed.kubectl("delete", "namespace", other.name, "--wait=false")


def test_no_link_in_a_projects_cache_leads_to_anothers(project: Project, site: Site, disk: Path) -> None:
    """It looks right to what fetches, which has a folder of that name; on the node it is another project's."""
    part = project.use_cache(disk)
    theirs = part.parent / "etc" / "ssl"
    theirs.mkdir(parents=True, exist_ok=True)
    (theirs / "secret.txt").write_text("another project's")
    data = {"name": "d", "url": f"{site.url}/{project.name}", "digest": sha256(b"")}
    link = part / "data" / DataVolume.model_validate(data).cache_name
    link.parent.mkdir(parents=True)
    os.chown(link.parent, 65532, 65532)
    part.chmod(0o777)
    link.symlink_to("../../etc/ssl")
    submit(project, "follows", [data], "import os; print(os.listdir(os.environ['STOKER_DATA_D']))")

    until(lambda: "failed to prepare subPath" in project.job("follows").status.message, "the refusal", timeout_s=90)
    assert project.job("follows").status.reason is Code.VOLUME_UNAVAILABLE
    assert not project.log("follows", 1)


def test_a_folder_that_the_node_lacks_is_the_reason_with_the_kubelets_message(
    project: Project, figure: Callable[[str, object], None]
) -> None:
    admits = "pod-security.kubernetes.io/enforce=privileged"
    project.stack.bed.kubectl("label", "namespace", project.name, admits, "--overwrite")
    source = {"hostPath": {"path": "/no/such/sets", "type": "Directory"}}
    name = f"lacks-{project.name}"
    offered = {"imagePullPolicy": "Never", "defaultFor": [project.name], "data": [{"name": "sets", "source": source}]}
    project.stack.put_runtime(name, offered)
    until(lambda: name in [one.metadata.name for one in project.client.runtimes()], "the api knows the runtime")
    began = time.monotonic()
    submit(project, "reads", [{"name": "d", "path": "sets"}], "print('never')")
    until(lambda: project.job("reads").status.reason is Code.VOLUME_UNAVAILABLE, "the reason", timeout_s=60)
    message = project.job("reads").status.message
    figure(
        "a runtime's folder is not on the node: said after, in these words",
        f"{time.monotonic() - began:.0f} s, {message}",
    )
    assert "MountVolume.SetUp failed" in message and "/no/such/sets" in message, message
    project.client.cancel("reads")
    project.until_phase("reads", Phase.CANCELLED)
    project.stack.bed.kubectl("delete", "trainingruntime", name)


OF_A_BUCKET = b"of a bucket"
JSON = {"Content-Type": "application/json"}


def s3(site: Site) -> dict[str, str]:
    site.put("/bucket/set/a.txt", OF_A_BUCKET, ETag='"1"', **{"Last-Modified": "Tue, 24 Nov 2026 10:00:00 GMT"})
    return {"AWS_ENDPOINT_URL": site.url, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}


def gs(site: Site) -> dict[str, str]:
    """Source: Cloud Storage JSON API, objects get, and its download."""
    about = {"kind": "storage#object", "bucket": "bucket", "name": "set/a.txt", "size": "11", "generation": "1"}
    about |= {"timeCreated": "2026-11-24T10:00:00.000Z", "updated": "2026-11-24T10:00:00.000Z"}
    site.put("/storage/v1/b/bucket/o/set%2Fa.txt", json.dumps(about).encode(), **JSON)
    site.put("/download/storage/v1/b/bucket/o/set%2Fa.txt", OF_A_BUCKET)
    return {"STORAGE_EMULATOR_HOST": site.url}


def hf(site: Site) -> dict[str, str]:
    """Source: the hub's API, dataset info, its tree, and a file of it."""
    about = {"id": "bucket/set", "sha": "a" * 40, "tags": [], "siblings": [{"rfilename": "a.txt"}]}
    there = [{"type": "file", "path": "a.txt", "size": len(OF_A_BUCKET), "oid": "b" * 40}]
    site.put("/api/datasets/bucket/set", json.dumps(about).encode(), **JSON)
    site.put("/api/datasets/bucket/set/tree/main", json.dumps(there).encode(), **JSON)
    site.put("/datasets/bucket/set/resolve/main/a.txt", OF_A_BUCKET, ETag=f'"{"b" * 40}"')
    return {"HF_ENDPOINT": site.url}


@pytest.mark.parametrize(
    ("store", "url"),
    [(s3, "s3://bucket/set/a.txt"), (gs, "gs://bucket/set/a.txt"), (hf, "hf://datasets/bucket/set/a.txt")],
)
def test_a_bucket_is_read_by_what_the_image_has_for_it(
    project: Project, site: Site, store: Callable[[Site], dict[str, str]], url: str
) -> None:
    """Packages that the operator's and api's own environment could not have, against a server of the store's words."""
    env = store(site)
    data = [{"name": "d", "url": url}]
    submit(project, "reads", data, "import os; print(open(os.environ['STOKER_DATA_D'] + '/a.txt').read())", env=env)
    project.until_phase("reads", Phase.SUCCEEDED)
    assert project.log("reads", 1) == "of a bucket\n"
    submit(project, "gone", [{"name": "d", "url": url.replace("bucket", "nowhere")}], "print('never')", env=env)
    until(lambda: project.job("gone").status.attempts, "its first attempt's end", timeout_s=120)
    end = project.job("gone").status.attempts[0]
    assert end.category == "DataUnavailable" and "tries" not in end.message, end.message
