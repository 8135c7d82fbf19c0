"""What a PromQL expression speaks of: series, functions over them, labels. Read off its parse tree. For tests.

Variables of Grafana are to be filled in before (`plain`). Needs promql-parser (a `dev` dependency).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True)
class Use:
    """One selector in an expression."""

    name: str
    labels: frozenset[str]
    """That its matchers name."""
    function: str
    """The function that takes its range; empty where it is a plain selector."""


def plain(query: str) -> str:
    """With a value for each of Grafana's variables."""
    return _VARIABLE.sub(lambda found: _value(found[1]), query)


def variables(query: str) -> set[str]:
    """Of the dashboard: those of Grafana's own are left out."""
    return {name for name in _VARIABLE.findall(query) if not name.startswith("__")}


def uses(query: str) -> list[Use]:
    """Raises: ValueError where it is no PromQL, types included."""
    return list(_uses(promql.parse(plain(query)), ""))


def grouped(query: str) -> set[str]:
    """Every label by which is summed, joined or brought along."""
    return set(_grouped(promql.parse(plain(query))))


def _value(variable: str) -> str:
    return {"__range_s": "60"}.get(variable, "60s" if variable.startswith("__") else "x")


def _uses(node: Any, function: str) -> Iterator[Use]:
    if isinstance(node, promql.MatrixSelector):
        yield from _uses(node.vector_selector, function)
    elif isinstance(node, promql.VectorSelector):
        yield Use(node.name or "", frozenset(one.name for one in node.matchers.matchers), function)
    elif isinstance(node, promql.Call):
        for part in node.args:
            yield from _uses(part, node.func.name)
    elif isinstance(node, promql.BinaryExpr):
        for part in (node.lhs, node.rhs):
            yield from _uses(part, "")
    else:
        for part in _below(node):
            yield from _uses(part, function)


def _grouped(node: Any) -> Iterator[str]:
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql.AggregateExpr) and modifier is not None:
        yield from modifier.labels
    elif isinstance(node, promql.BinaryExpr) and modifier is not None:
        yield from modifier.matching.labels if modifier.matching else ()
        yield from modifier.group_labels or ()
    parts = node.args if isinstance(node, promql.Call) else _below(node)
    for part in (node.lhs, node.rhs) if isinstance(node, promql.BinaryExpr) else parts:
        yield from _grouped(part)


def _below(node: Any) -> Iterator[Any]:
    for name in ("expr", "param"):
        part = getattr(node, name, None)
        if part is not None:
            yield part
