"""Stoker as its users install it, on the test bed's real nodes: CRDs, rights, operator and api as pods, one project.

Owns the deployment and a client as a project's user; the end-to-end tests break things through `bed` and `kubectl`.
Never reaches into Stoker: what it sees is what kubectl and REST show. The api answers at a NodePort of n0.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.client.client import Client
from stoker.client.errors import ApiError
from stoker.spec.job import ENDED, Phase, TrainingJob
from tests.support.cluster_driver import DRIVER_ROOT, NodeDrivers
from tests.support.harness import until
from tests.support.testbed.helm import Release
from tests.support.testbed.nodes import NodeBed
from tools import images

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "stoker"
MANIFESTS = ROOT / "tests" / "e2e" / "cluster" / "manifests"
COUNTING = ROOT / "tests" / "e2e" / "cluster" / "counting.py"
SYSTEM = "stoker-system"
WATCH = f"{SYSTEM}-exporter"
"""The namespace that the chart makes for the exporters."""
API_PORT = 30470
RACK = "example.com/rack"
"""The label that says which nodes are close together; they have it where a test sets it."""
IMAGES = ("control-plane", "trainer-cpu", "foreign-python", "foreign-pip", "foreign-busybox", "foreign-root")


class Stack:
    """Stoker on a bed whose nodes hold the images. `deploy` once, then projects."""

    def __init__(self, bed: NodeBed, built: dict[str, images.Image]) -> None:
        self.bed = bed
        self.images = {name: image.name for name, image in built.items()}
        self.url = f"http://{bed.nodes['n0'].address}:{API_PORT}"
        self.release = Release(bed, "stoker", SYSTEM)
        self.drivers = NodeDrivers(bed.nodes)

    def deploy(self) -> None:
        """The chart, installed by helm into a namespace that enforces *restricted*; what runs there is upgraded."""
        self.prepare()
        if self.release.revisions:
            self.release.upgrade(CHART, self.values())
        else:
            self.release.install(CHART, self.values())

    def prepare(self) -> None:
        """What a cluster has before Stoker comes: the namespace, and a volume for any that claims one there."""
        self.apply("system", system=SYSTEM, data=str(self._folder("api-data")))

    def values(self, **changed: Any) -> dict[str, Any]:
        """Of the chart, for this bed: images that the nodes hold, the api at a port of theirs, their fake driver."""
        control, _, control_tag = self.images["control-plane"].rpartition(":")
        trainer, _, trainer_tag = self.images["trainer-cpu"].rpartition(":")
        return {
            "image": {
                "registry": "",
                "pullPolicy": "Never",
                "controlPlane": {"repository": control, "tag": control_tag},
                "trainer": {"repository": trainer, "tag": trainer_tag},
            },
            "operator": {"nodeLostAfter": "5s"},
            "topology": {"levels": [RACK]},
            "api": {
                "service": {"type": "NodePort", "nodePort": API_PORT},
                "allowHosts": [self.bed.nodes["n0"].address],
                "nodeSelector": {"kubernetes.io/hostname": "n0"},
                "persistence": {"storageClass": "-"},
            },
            "exporter": {"driverRoot": DRIVER_ROOT},
            "health": {"burnIn": {"enabled": False}},  # there is no CUDA: no test could say anything
            "monitoring": {"scraper": {"serviceAccount": "prometheus", "namespace": "monitoring"}},
        } | changed

    def apply(self, manifest: str, **values: Any) -> None:
        """Apply one of the manifests with its ${names} filled in; lists become JSON, which is YAML."""
        plain = {
            name: value if isinstance(value, str) else json.dumps(value, default=str) for name, value in values.items()
        }
        text = string.Template((MANIFESTS / f"{manifest}.yaml").read_text()).substitute(plain)
        self.bed.kubectl("apply", "-f", "-", stdin=text)

    def project(self, name: str, owner: int | None = None) -> Project:
        """A namespace with a user and a volume; the volume is shared, or one user's (by UID)."""
        shared = self._folder(f"shared-{name}")
        if owner is not None:
            os.chown(shared, owner, owner)
            shared.chmod(0o770)
        self.apply("project", project=name, shared=str(shared))
        until(lambda: "Bound" in self.bed.kubectl("get", "pvc", "checkpoints", "-n", name), "the claim is bound")
        token = self.bed.kubectl("create", "token", "alice", "-n", name, "--duration=6h").strip()
        return Project(self, name, token)

    def put_runtime(self, name: str, spec: dict[str, Any]) -> None:
        """As an administrator does it."""
        runtime = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": name}}
        self.bed.kubectl("apply", "-f", "-", stdin=json.dumps({**runtime, "spec": spec}))

    def secret(self, namespace: str, name: str, key: str) -> str:
        """What a Secret holds under the key."""
        found = json.loads(self.bed.kubectl("get", "secret", name, "-n", namespace, "-o", "json"))
        return base64.b64decode(found["data"][key]).decode()

    def gpus_held(self) -> dict[str, int]:
        """Pretend GPUs that pods which have not ended ask for, by node: the cluster's own books."""
        held = dict.fromkeys(self.bed.nodes, 0)
        for pod in json.loads(self.bed.kubectl("get", "pods", "-A", "-o", "json"))["items"]:
            if pod["status"].get("phase") in ("Succeeded", "Failed") or "nodeName" not in pod["spec"]:
                continue
            for container in pod["spec"]["containers"]:
                limits = container.get("resources", {}).get("limits", {})
                held[pod["spec"]["nodeName"]] += int(limits.get("nvidia.com/gpu", 0))
        return held

    def others_pod(self, name: str) -> dict[str, Any]:
        """The spec of a pod that is none of Stoker's and holds a GPU."""
        return {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": name,
                    "image": self.images["foreign-busybox"],
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", "while :; do sleep 1; done"],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        }

    @contextlib.contextmanager
    def cordoned(self, node: str) -> Iterator[None]:
        """Nothing new is placed on the node meanwhile."""
        self.bed.kubectl("cordon", node)
        try:
            yield
        finally:
            self.bed.kubectl("uncordon", node)

    def clear_gpus(self, node: str) -> None:
        """What an administrator says with kubectl of a node's GPUs that are healthy again."""
        at = datetime.now(UTC).isoformat()
        cleared = [{"gpu": f"GPU-{node}-{index}", "at": at} for index in range(self.bed.nodes[node].gpus)]
        self.bed.kubectl("patch", "gpunodes", node, "--type=merge", "-p", json.dumps({"spec": {"cleared": cleared}}))

    def _folder(self, name: str) -> Path:
        folder = self.bed.folder / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # a hostPath volume knows no fsGroup
        return folder


class Project:
    """A team's namespace, used as its user uses it."""

    def __init__(self, stack: Stack, name: str, token: str, url: str = "") -> None:
        """`url`: another way to the api than the stack's."""
        self.stack, self.name, self._token, self._url = stack, name, token, url or stack.url
        self.client = Client(self._url, token, project=name, timeout=10)

    def over(self, url: str) -> Project:
        """The same project and user by another way to the api."""
        return Project(self.stack, self.name, self._token, url)

    def stoker(
        self, *args: str, cwd: Path | None = None, stdin: str = "", check: bool = True, timeout_s: float = 150
    ) -> subprocess.CompletedProcess[str]:
        """The `stoker` command, as the project's user runs it. Raises: AssertionError where it failed, if `check`."""
        done = subprocess.run(
            self.command(*args), cwd=cwd, env=self.environment(), input=stdin, capture_output=True, text=True,
            timeout=timeout_s,
        )  # fmt: skip
        assert not check or done.returncode == 0, done
        return done

    def command(self, *args: str) -> list[str]:
        return [str(Path(sys.executable).with_name("stoker")), *args]

    def environment(self) -> dict[str, str]:
        ours = {"STOKER_SERVER": self._url, "STOKER_TOKEN": self._token, "STOKER_PROJECT": self.name}
        return {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | ours

    def count(self, name: str, *, steps: int, step_s: float = 0.1, save_every: int = 20, **spec: Any) -> TrainingJob:
        """Submit the user's counting script, as it is, in a Python image that is not ours."""
        trainer = {"image": self.stack.images["foreign-python"], "command": ["python3", "-c", COUNTING.read_text()]}
        env = {"STEPS": str(steps), "STEP_S": str(step_s), "SAVE_EVERY": str(save_every), **spec.pop("env", {})}
        return self.client.submit(
            {"cpu": "100m", "memory": "128Mi", "checkpoint": {"grace": "10s"}, **spec, "trainer": trainer, "env": env},
            name=name,
        )

    def job(self, name: str) -> TrainingJob:
        return self.client.get(name)

    def until_phase(self, name: str, *phases: Phase, attempt: int = 0, timeout_s: float = 120) -> TrainingJob:
        """The job, once it is in one of these phases (and at least at this attempt).

        Raises: TimeoutError, AssertionError where it has ended otherwise.
        """

        def there() -> TrainingJob | None:
            job = self.job(name)
            if job.status.phase in phases and job.status.attempt >= attempt:
                return job
            assert job.status.phase not in ENDED or job.status.phase in phases, job.status
            return None

        return until(there, f"job {name} in {' or '.join(phases)}", timeout_s=timeout_s, every_s=0.2)

    def until_step(self, name: str, step: int, *, attempt: int | None = None, timeout_s: float = 120) -> None:
        """Return once the counting script's log shows this step."""

        def there() -> bool:
            seen = self.steps(name, attempt or max(1, self.job(name).status.attempt))
            return bool(seen) and seen[-1] >= step

        until(there, f"step {step} of {name}", timeout_s=timeout_s, every_s=0.3)

    def log(self, name: str, attempt: int, worker: int = 0) -> str:
        """What the api has of an attempt's log; empty where there is none."""
        try:
            return b"".join(self.client.log_bytes(name, attempt=attempt, worker=worker)).decode()
        except ApiError as error:
            if error.status == 404:
                return ""
            raise

    def steps(self, name: str, attempt: int) -> list[int]:
        """The steps an attempt printed, in order."""
        lines = self.log(name, attempt).splitlines()
        return [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]

    def steps_lost(self, name: str) -> list[int]:
        """Per interruption: the steps that had to be done again."""
        job = self.job(name)
        printed = [self.steps(name, attempt) for attempt in range(1, job.status.attempt + 1)]
        ran = [steps for steps in printed if steps]
        return [before[-1] - (after[0] - 1) for before, after in itertools.pairwise(ran)]

    def use_cache(self, disk: Path | None) -> Path:
        """Its runtime has a cache from now on: a folder of all nodes, or its claim. Returns: the project's part of
        it, as the machine sees it."""
        kubectl, name = self.stack.bed.kubectl, f"cached-{self.name}"
        if disk is None:
            folder, cache = self.stack.bed.folder / f"shared-{self.name}", {"claim": "checkpoints"}
        else:
            admits = "pod-security.kubernetes.io/enforce=privileged"  # a path of the node's is nothing for *restricted*
            kubectl("label", "namespace", self.name, admits, "--overwrite")
            folder, cache = disk, {"hostPath": str(disk)}
        self.stack.put_runtime(name, {"imagePullPolicy": "Never", "defaultFor": [self.name], "cache": cache})
        until(lambda: name in [one.metadata.name for one in self.client.runtimes()], "the api knows the runtime")
        return folder / self.name

    def pods(self, job: str) -> list[dict[str, Any]]:
        listed = self.stack.bed.kubectl("get", "pods", "-n", self.name, "-l", f"stoker.dev/job={job}", "-o", "json")
        found: list[dict[str, Any]] = json.loads(listed)["items"]
        return found

    def node_of(self, job: str) -> str:
        """The node its first worker is placed on."""
        return self.job(job).status.placement[0].node


def built_images(folder: Path, names: Sequence[str] = IMAGES) -> dict[str, images.Image]:
    """The images the stack needs, their archives in `folder`; built where they are not there yet (minutes, once)."""
    found = {}
    for name in names:
        image = images.ensure(name, print)
        kept = folder / image.archive.name
        shutil.copy2(image.archive, kept)  # of this run: a newer build meanwhile removes the older
        found[name] = images.Image(image.name, kept)
    return found
