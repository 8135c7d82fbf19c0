"""Prometheus' text format 0.0.4 → samples, of pages that may be anybody's. Pure; linear in the page's size.

Source: prometheus.io/docs/instrumenting/exposition_formats (text format).
"""

from __future__ import annotations

import re

from prometheus_client.core import Sample

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,[ \t]*|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

MOST_LABELS, LONGEST_NAME, LONGEST_VALUE = 40, 200, 1000
"""Of one series; receivers have limits of about that, and refuse a whole request for one series beyond them."""


def parse(page: bytes, most: int) -> list[Sample]:
    """Times in the page are left out: a sample is of the moment it was read.

    Raises: ValueError where it is no such page, has over `most` series, or labels beyond the bounds.
    """
    found: list[Sample] = []
    for line in page.decode().split("\n"):
        line = line.strip(" \t\r")
        if not line or line[0] == "#":
            continue
        if len(found) == most:
            raise ValueError(f"more than {most} series")
        found.append(_sample(line))
    return found


def _sample(line: str) -> Sample:
    name = _NAME.match(line)
    if name is None or name.end() > LONGEST_NAME:
        raise ValueError(f"no metric's name: {line[:80]!r}")
    labels, at = _labels(line, name.end() + 1) if line[name.end() :].startswith("{") else ({}, name.end())
    fields = line[at:].split(None, 2)
    if not 1 <= len(fields) <= 2:
        raise ValueError(f"no value: {line[:80]!r}")
    return Sample(name[0], labels, float(fields[0]))


def _labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """Those that begin at the place, and where the rest begins."""
    labels: dict[str, str] = {}
    while line[at : at + 1] != "}":
        label = _LABEL.match(line, at)
        if label is None or len(labels) == MOST_LABELS:
            raise ValueError(f"no labels, or too many: {line[:80]!r}")
        if len(label[1]) > LONGEST_NAME or len(label[2]) > LONGEST_VALUE:
            raise ValueError(f"a label is too long: {line[:80]!r}")
        value = _ESCAPE.sub(_unescaped, label[2]) if "\\" in label[2] else label[2]
        labels[label[1]] = value
        at = label.end()
    return labels, at + 1


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[0])
