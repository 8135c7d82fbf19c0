"""What the exporters on the bed's nodes serve and are: read as Prometheus reads them, at the pods' own addresses.

Owns finding the pod of a node and reading its page. Never changes anything. Called by the end-to-end tests.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster_stack import WATCH, Stack
from tests.support.harness import until

PORT = 8475
READ_TIMEOUT_S = 10.0


class Page:
    """One answer of `/metrics`."""

    def __init__(self, text: str) -> None:
        self._samples = [one for family in text_string_to_metric_families(text) for one in family.samples]

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of those that have these labels."""
        return [
            (one.labels, one.value)
            for one in self._samples
            if one.name == name and all(one.labels.get(label) == value for label, value in labels.items())
        ]

    def value(self, name: str, **labels: str) -> float:
        """Raises: AssertionError unless exactly one series has these labels."""
        found = self.series(name, **labels)
        assert len(found) == 1, (name, labels, found)
        return found[0][1]

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.series(name, **labels))


def pod_of(stack: Stack, node: str) -> dict[str, Any]:
    """The node's exporter pod, once there is one that is ready."""

    def ready() -> dict[str, Any] | None:
        text = stack.bed.kubectl(
            "get", "pods", "-n", WATCH, "-o", "json", f"--field-selector=spec.nodeName={node}", timeout_s=20
        )
        for pod in json.loads(text)["items"]:
            conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
            if conditions.get("Ready") == "True" and not pod["metadata"].get("deletionTimestamp"):
                found: dict[str, Any] = pod
                return found
        return None

    return until(ready, f"an exporter on {node}", timeout_s=90, every_s=0.3)


class Exporter:
    """The exporter of one node, followed when its pod is another."""

    def __init__(self, stack: Stack, node: str) -> None:
        self._stack, self.node, self._address = stack, node, ""
        self._token = {"Authorization": f"Bearer {stack.secret(WATCH, 'stoker-exporter-scrape', 'token')}"}

    def page(self) -> Page:
        """Raises: OSError where no one answers at the address it last had (asked anew next time)."""
        self._address = self._address or pod_of(self._stack, self.node)["status"]["podIP"]
        try:
            request = urllib.request.Request(f"http://{self._address}:{PORT}/metrics", headers=self._token)
            with urllib.request.urlopen(request, timeout=READ_TIMEOUT_S) as answer:
                return Page(answer.read().decode())
        except OSError:
            self._address = ""
            raise

    def shares(self, **labels: str) -> list[dict[str, str]]:
        """Who holds this node's GPUs now: the labels of stoker_gpu_allocation_share_ratio; [] where no one answers."""
        try:
            return [found for found, _ in self.page().series("stoker_gpu_allocation_share_ratio", **labels)]
        except OSError:
            return []

    def processes(self) -> list[dict[str, str]]:
        """/proc/<pid>/status, as this machine sees it, of the exporter and then of its NVML child."""
        name = pod_of(self._stack, self.node)["metadata"]["name"]
        reported = [status for folder in Path("/proc").glob("[0-9]*") if (status := _status(folder))]
        [parent] = [one for one in reported if f"HOSTNAME={name}\0" in _text(Path("/proc") / one["Pid"] / "environ")]
        return [parent, *(one for one in reported if one["PPid"] == parent["Pid"])]


def _status(folder: Path) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in _text(folder / "status").splitlines() if ":\t" in line)


def _text(path: Path) -> str:
    """Empty where the process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
