"""Samples as Prometheus text, format 0.0.4. Pure.

Source: prometheus.io/docs/instrumenting/exposition_formats (text format).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, isnan

from stoker.push.samples import Sample

from .series import Labels, catalogue_names

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES = catalogue_names()


class TextMaker:
    """Keeps the labels' text of the poll before, by the labels' identity: `SampleMaker` keeps the labels."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Labels, str]] = {}

    def render(self, samples: Iterable[Sample]) -> bytes:
        """Families have to stand together, as `SampleMaker` gives them. Cost: 1 µs a series (bench_exporter)."""
        before, self._known = self._known, {}
        lines: list[str] = []
        last = ""
        for name, labels, value in samples:
            if name != last:
                last = name
                lines.append(_head(name))
            known = before.get(id(labels))
            if known is None or known[0] is not labels:
                known = (labels, _labels(labels))
            self._known[id(labels)] = known
            lines.append(f"{name}{known[1]} {_number(value)}\n")
        return "".join(lines).encode()


def _head(name: str) -> str:
    family = _FAMILIES[name]
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.type}\n"


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{label}="{_escape(value)}"' for label, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    """Go's ParseFloat reads Python's shortest digits; whole numbers without a point are shorter."""
    value = float(value)  # an int of JSON has no is_integer before Python 3.12
    if value.is_integer() and -1e15 < value < 1e15:
        return str(int(value))
    if isfinite(value):
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
