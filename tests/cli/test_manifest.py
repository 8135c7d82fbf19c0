"""Job files: what YAML means here, what is refused, and where in the file a fault stands."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.cli.manifest import override, parse_manifests
from stoker.client.errors import ApiError, BadInput, Fault

FILE = """\
# a comment
apiVersion: stoker.dev/v1alpha1
metadata:
  name: a
spec:
  cpu: 2
  trainer:
    recipe: image-classification
    config: {optimizer: {learningRate: 3e-3}}
  retry:
    rules:
      - categories: [NodeLost]
        limit: 010
  env:
    ANSWER: no
    on: off
    WHEN: 2026-01-01
    TIME: 1:30
"""


def test_yaml_means_what_people_mean() -> None:
    spec = parse_manifests(FILE, "job.yaml")[0].body["spec"]
    assert spec["retry"]["rules"][0] == {"categories": ["NodeLost"], "limit": 10}
    assert spec["env"] == {"ANSWER": "no", "on": "off", "WHEN": "2026-01-01", "TIME": "1:30"}
    assert spec["trainer"]["config"]["optimizer"]["learningRate"] == 0.003
    assert spec["cpu"] == 2


def test_several_documents_and_empty_ones() -> None:
    found = parse_manifests("---\nspec: {cpu: 1}\n---\n---\nspec: {cpu: 2}\n", "x")
    assert [manifest.body["spec"]["cpu"] for manifest in found] == [1, 2]
    assert found[1].lines["/spec/cpu"] == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spec:\n  cpu: 1\n  cpu: 2\n", r"f.yaml: line 3: 'cpu' is given twice \(first in line 2\)"),
        ("spec: {a: {b: 1, b: 2}}\n", "line 1: 'b' is given twice"),
        ("spec:\n  - [\n", "f.yaml, line"),
        ("spec: {1: 2}\n", "line 1: a field's name must be plain text"),
        ("cpu: 1\n", "has the fields apiVersion, kind, metadata and spec"),
        ("- 1\n", "has the fields"),
        ("", "f.yaml is empty"),
        ("a: !!python/object/apply:os.system [ls]\n", "f.yaml, line 1: could not determine a constructor"),
        ("a: *b\n", "f.yaml, line 1: found undefined alias"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_manifests(text, "f.yaml")


def test_a_fault_is_shown_with_its_line() -> None:
    manifest = parse_manifests(FILE, "job.yaml")[0]
    error = ApiError(
        422,
        "Invalid",
        "not valid",
        (
            Fault("/spec/trainer/config/optimizer/learningRate", "must be greater than 0"),
            Fault("/spec/retry/rules/0/backoff", "is no duration"),
            Fault("", "too long"),
        ),
    )
    assert manifest.explain(error).splitlines() == [
        "spec.trainer.config.optimizer.learningRate (job.yaml:9): must be greater than 0",
        "spec.retry.rules.0.backoff (job.yaml:12): is no duration",
        "the document (job.yaml:2): too long",
    ]


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("spec.cpu=4", ("spec", "cpu"), 4),
        ("spec.stop.target.value=0.9", ("spec", "stop", "target", "value"), 0.9),
        ("spec.trainer.config.epochs=1e1", ("spec", "trainer", "config", "epochs"), 10),
        ("spec.retry.rules.0.limit=3", ("spec", "retry", "rules", 0, "limit"), 3),
        ("metadata.labels={team: a}", ("metadata", "labels"), {"team": "a"}),
        ("spec.env.EMPTY=", ("spec", "env", "EMPTY"), None),
        ("spec.env.URL=http://a/?b=c", ("spec", "env", "URL"), "http://a/?b=c"),
    ],
)
def test_set(assignment: str, path: tuple[Any, ...], value: Any) -> None:
    body = parse_manifests(FILE, "job.yaml")[0].body
    override(body, assignment)
    found: Any = body
    for key in path:
        found = found[key]
    assert found == value


@pytest.mark.parametrize(
    "assignment", ["cpu=1", "spec=1", "spec.cpu", "spec..cpu=1", "spec.cpu.x=1", "spec.retry.rules.7.limit=1", "=1"]
)
def test_set_refuses(assignment: str) -> None:
    with pytest.raises(BadInput, match="--set"):
        override(parse_manifests(FILE, "job.yaml")[0].body, assignment)
