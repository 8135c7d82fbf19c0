"""The api speaks https of its own: people, workers, their sessions and the probes all meet it that way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.spec.job import Phase
from tests.support.cluster_stack import CHART, SYSTEM, Project, Stack
from tests.support.harness import until
from tests.support.testbed.pki import issue, make_authority

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def authority(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An authority of the house, whose certificate the api shows; http is what the others get back."""
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    names = f"DNS:stoker-api.{SYSTEM}.svc,IP:{stack.bed.nodes['n0'].address}"
    issue(folder, "api", "/CN=stoker-api", names)
    secret = ("secret", "tls", "stoker-api-tls", "-n", SYSTEM)
    stack.bed.kubectl("create", *secret, f"--cert={folder}/api.crt", f"--key={folder}/api.key")
    values = stack.values(caBundle={"pem": (folder / "ca.crt").read_text()})
    values["api"] |= {"tls": {"secretName": "stoker-api-tls"}}
    stack.release.upgrade(CHART, values)
    yield folder
    stack.release.upgrade(CHART, stack.values())
    stack.bed.kubectl("delete", "secret", "stoker-api-tls", "-n", SYSTEM)


@pytest.fixture
def secure(stack: Stack, authority: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The project, used over https."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.crt"))
    found = project.over(stack.url.replace("http:", "https:"))
    project.client, plain = found.client, project.client
    found.client.whoami()  # which reads the authority while the environment names it
    yield found
    plain.close()


def test_a_job_trains_and_reports_over_https(secure: Project, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('shipped', flush=True)\ntime.sleep(60)\n")
    image = secure.stack.images["foreign-python"]
    secure.stoker(
        "submit", "--name", "https", "--image", image, "--memory", "128Mi", "--", "python3", "train.py", cwd=tmp_path
    )
    secure.until_phase("https", Phase.RUNNING)
    until(lambda: "shipped" in secure.log("https", 1), "its code and its log came over https", timeout_s=60)
    seen = secure.stoker("exec", "https", "--", "sh", "-c", "test -f train.py && echo inside")
    assert seen.stdout == "inside\n"
    (pod,) = secure.pods("https")
    env = {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][0]["env"]}
    assert env["STOKER_API_URL"] == f"https://stoker-api.{SYSTEM}.svc:8470"
    assert "BEGIN CERTIFICATE" in env["STOKER_API_CA_PEM"]
    secure.client.cancel("https")


def test_plain_http_is_no_way_in(secure: Project, project: Project) -> None:
    assert secure.stoker("ls").returncode == 0
    refused = project.stoker("ls", check=False)
    assert refused.returncode != 0 and "Traceback" not in refused.stderr, refused
