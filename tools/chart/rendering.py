"""The chart through the real helm: objects, refusals, lint. Called by `chart.__main__` and by the tests.

Needs helm built (`make testbed GROUP=helm`); talks to no cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.testbed import build

CHART = Path(__file__).resolve().parents[2] / "helm" / "stoker"
RELEASE, NAMESPACE = "stoker", "stoker-system"
# What the newest Kubernetes serves and the oldest does not.
SERVED = ("admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",)
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast as what `yaml.safe_load` takes."""


class Refused(Exception):
    """Helm takes no such values; the text is helm's."""


def rendered(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    kubeconfig: Path | None = None,
) -> str:
    """Everything that would be installed, as text, hooks too; `kubeconfig`: of a cluster to look things up in.

    Raises: Refused.
    """
    known = [f"--api-versions={kind}" for kind in SERVED]
    if kubeconfig is not None:
        known += ["--dry-run=server", "--take-ownership", f"--kubeconfig={kubeconfig}"]
    return _helm("template", release, str(CHART), f"--namespace={namespace}", "--values=-", *known, values=values)


def objects(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> list[dict[str, Any]]:
    """The same as objects. Raises: Refused."""
    return parsed(rendered(values, release=release, namespace=namespace))


def parsed(text: str) -> list[dict[str, Any]]:
    """The objects of a rendering."""
    return [one for one in yaml.load_all(text, Loader=Loader) if one]


def notes(values: Mapping[str, Any] | None = None) -> str:
    """The notes after an install. Raises: Refused."""
    args = ("install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--values=-", "--dry-run=client")
    return _helm(*args, values=values).partition("NOTES:\n")[2]


def lint(values: Mapping[str, Any] | None = None) -> str:
    """What helm's own linter says, strictly. Raises: Refused."""
    return _helm("lint", "--strict", str(CHART), "--values=-", values=values)


def _helm(*args: str, values: Mapping[str, Any] | None) -> str:
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    env["GOGC"] = "off"  # a third of helm's CPU is collecting garbage
    done = subprocess.run(
        [str(build.program("helm")), *args], input=json.dumps(values or {}), capture_output=True, text=True,
        timeout=60, env=env, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Refused(done.stderr.strip() + done.stdout.strip())
    return done.stdout
