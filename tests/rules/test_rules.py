"""The chart's rules: Prometheus' own checker takes them, their unit tests hold, and every alert and record has one.

`promtool test rules` runs tests/rules/*.yaml with Prometheus' own engine; what an alert's texts and labels say is held
against those tests here.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable
from tools.chart.rendering import Loader
from tools.generate import metrics_table

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "helm" / "stoker" / "files" / "rules").glob("*.yaml"))
TESTS = sorted(Path(__file__).parent.glob("*.yaml"))
RUNBOOKS = "https://github.com/stoker-dev/stoker/blob/main/docs/runbooks/"
SECTIONS = ["## Meaning", "## Impact", "## Diagnose", "## Fix", "## Silence"]
FIRING = re.compile(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}')
LABEL = re.compile(r"\$labels\.(\w+)")
# What a monitoring of many clusters adds, and what promtool and Prometheus set themselves.
ANYWHERE = {"cluster", "instance", "__name__"}


def rules() -> Iterator[dict[str, Any]]:
    for path in FILES:
        for group in yaml.load(path.read_text(), Loader=Loader)["groups"]:
            yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in rules() if "record" in rule}


def promtool(*arguments: str | Path) -> None:
    try:
        program = build.program("promtool")
    except Unavailable as error:
        pytest.skip(str(error))
    env = {"GOGC": "400"}  # a quarter of its CPU is collecting garbage
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_prometheus_takes_the_file(path: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", path)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.name == "gpus.yaml" else (), id=path.name) for path in TESTS],
)
def test_rules_say_what_they_should(path: Path) -> None:
    promtool("test", "rules", path)


@functools.cache
def cases() -> list[dict[str, Any]]:
    return [case for path in TESTS for case in yaml.load(path.read_text(), Loader=Loader)["tests"]]


@functools.cache
def known_labels() -> dict[str, frozenset[str]]:
    return metrics_table.labels_by_name()


@functools.cache
def fired() -> dict[str, list[dict[str, str]]]:
    """Alert → the labels of each time it fires in a test."""
    found: dict[str, list[dict[str, str]]] = {name: [] for name in ALERTS}
    for case in cases():
        for query in case["promql_expr_test"]:
            if (match := FIRING.fullmatch(query["expr"])) is not None:
                for sample in query["exp_samples"]:
                    found[match[1]].append(dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"])))
    return found


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_case_in_which_it_fires_and_ends(name: str) -> None:
    def states(case: dict[str, Any]) -> list[bool]:
        asked = (query for query in case["promql_expr_test"] if name in query["expr"])
        return [bool(query["exp_samples"]) for query in asked]

    reported = [states(case) for case in cases()]
    assert any(True in case and not case[-1] for case in reported), "it fires and ends"
    assert any(case and not case[0] for case in reported), "and is silent before"


@pytest.mark.parametrize("name", RECORDS)
def test_each_record_has_a_case_with_numbers(name: str) -> None:
    used = " ".join(query["expr"] for case in cases() for query in case["promql_expr_test"] if query["exp_samples"])
    inside = " ".join(rule["expr"] for record, rule in RECORDS.items() if record != name)
    assert name in used or name in inside


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_says_what_to_do_and_where_it_is_written(name: str) -> None:
    rule = ALERTS[name]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and "for" in rule
    assert rule["labels"]["severity"] in ("warning", "critical")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert len(notes["summary"]) < 160 and notes["description"].endswith(".")
    assert notes["runbook_url"] == f"{RUNBOOKS}{name}.md"
    page = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert [line for line in page.splitlines() if line.startswith("## ")] == SECTIONS
    texts = notes["summary"] + notes["description"]
    named = set(LABEL.findall(texts))
    always = set.intersection(*(set(labels) for labels in fired()[name]))
    optional = set(re.findall(r"{{ (?:with|if) \$labels\.(\w+) }}", texts))
    assert named <= always or optional, f"texts name {named - always}, which the alert has not"


def test_alerts_about_jobs_can_be_routed_to_their_owners() -> None:
    for name, times in fired().items():
        if name.startswith("StokerJob") and name != "StokerJobNotStarted":
            assert times and all({"project", "job_name", "queue", "user"} <= set(labels) for labels in times), name


def test_there_is_no_page_without_an_alert() -> None:
    assert {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize(("name", "rule"), [*ALERTS.items(), *RECORDS.items()], ids=[*ALERTS, *RECORDS])
def test_rules_name_series_and_labels_that_there_are(name: str, rule: dict[str, Any]) -> None:
    known = known_labels()
    selectors, asked = list(vectors(promql_parser.parse(rule["expr"]))), set(grouped(rule["expr"]))
    assert selectors
    labels = set(ANYWHERE)
    for series, matched in selectors:
        if series in RECORDS:
            labels |= labels_of(series, known)
            continue
        names = [one for one in known if re.fullmatch(series, one)]
        assert names, f"{name}: nothing exports {series}"
        there = set().union(*(known[one] for one in names))
        assert matched <= there | ANYWHERE, f"{name}: {series} has no {matched - there}"
        labels |= there
    assert asked <= labels | made(rule["expr"]), f"{name}: none of its series has {asked - labels}"


def labels_of(record: str, known: dict[str, frozenset[str]]) -> set[str]:
    """What the record may have: of all that it is made of."""
    expr = RECORDS[record]["expr"]
    found = made(expr)
    for series, _ in vectors(promql_parser.parse(expr)):
        found |= labels_of(series, known) if series in RECORDS else set(known.get(series, ()))
    return found


def vectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Each selector of a query: its name (a pattern, where it has one), and the labels that it asks for."""
    if isinstance(node, promql_parser.MatrixSelector):
        node = node.vector_selector
    if isinstance(node, promql_parser.VectorSelector):
        matchers = {matcher.name: matcher for matcher in node.matchers.matchers}
        name = node.name or matchers.pop("__name__").value
        yield name, set(matchers)
        return
    for part in ("expr", "lhs", "rhs", "param"):
        if isinstance(inner := getattr(node, part, None), promql_parser.Expr):
            yield from vectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from vectors(inner)


def grouped(expr: str) -> Iterator[str]:
    for group in re.findall(r"\b(?:by|on|without|group_left|group_right) \(([^)]*)\)", expr):
        yield from (label.strip() for label in group.split(",") if label.strip())


def made(expr: str) -> set[str]:
    """Labels that the query makes."""
    return set(re.findall(r'"(\w+)", "(?:\$1|\+Inf)"', expr))
