"""What a dashboard asks Prometheus, with its variables filled in as Grafana does, and what comes back.

Owns the meaning of Grafana's variables (`$name`, `${name}`, `$__range`, `$__rate_interval` …) as far as our dashboards
use them. Called by tests/chart and tests/e2e.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 30.0
WIDEST = 400
"""Points of a graph at most."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SPECIAL = re.compile(r"[\\\\^$*+?.()|{}\[\]]")
"""What Grafana escapes in values of variables; twice, for it stands in a string of PromQL."""
_LABEL_VALUES = re.compile(r"label_values\((.*),\s*(\w+)\)")


class Refused(Exception):
    """Prometheus is not there, or does not like a query."""


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, path: str, params: Mapping[str, str | Sequence[str]]) -> Any:
        """Raises: Refused."""
        address = f"{self.url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(params, doseq=True)}"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Refused(f"{params}: {error.read().decode(errors='replace')[:500]}") from None
        except OSError as error:
            raise Refused(f"no Prometheus at {self.url}: {error}") from None


@dataclass(frozen=True)
class Window:
    """The time shown, and how often was scraped. Unix seconds."""

    start: float
    end: float
    scrape_s: float = 15.0

    @property
    def step_s(self) -> int:
        return max(int(self.scrape_s), round((self.end - self.start) / WIDEST))


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of folded rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


@dataclass
class Questions:
    """Of one dashboard, given as its JSON."""

    dashboard: Mapping[str, Any]
    prometheus: Prometheus
    window: Window
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Variable → the value that is to be chosen; else all, or the first."""

    def __post_init__(self) -> None:
        self.values: dict[str, str] = {}
        """Variable → what stands for it in queries."""
        self.chosen: dict[str, str] = {}
        """Variable → what is shown of it."""
        for variable in self.dashboard["templating"]["list"]:
            if variable["type"] == "query":
                self._choose(variable)

    def filled(self, query: str) -> str:
        """With every variable's value. Raises: KeyError for one that the dashboard has not."""
        seconds = round(self.window.end - self.window.start)
        rate_s = max(self.window.step_s + self.window.scrape_s, 4 * self.window.scrape_s)
        known = {
            "__range": f"{seconds}s", "__range_s": str(seconds), "__rate_interval": f"{rate_s:.0f}s",
            "__interval": f"{self.window.step_s}s", **self.values,
        }  # fmt: skip
        return _VARIABLE.sub(lambda found: known[found[1] or found[2]], query)

    def answers(self) -> dict[int, dict[str, Any]]:
        """Panel's id → target's refId → Prometheus' result."""
        return {
            panel["id"]: {target["refId"]: self._answer(target) for target in panel["targets"]}
            for panel in panels(self.dashboard)
        }

    def annotations(self) -> list[dict[str, Any]]:
        """Each with its moment (unix seconds) and colour."""
        found = []
        for one in self.dashboard["annotations"]["list"]:
            step_s = float(one["step"].removesuffix("s"))
            for series in self._range(one["expr"], step_s):
                before = 0.0
                for at, _ in series["values"]:
                    if at - before > step_s:  # minutes on end are one event
                        found.append({"at": at, "color": one["iconColor"]})
                    before = at
        return found

    def _answer(self, target: Mapping[str, Any]) -> Any:
        if not target["instant"]:
            return self._range(target["expr"], self.window.step_s)
        params = {"query": self.filled(target["expr"]), "time": f"{self.window.end:.3f}"}
        answer = self.prometheus.ask("query", params)
        return [{"metric": {}, "value": answer["result"]}] if answer["resultType"] == "scalar" else answer["result"]

    def _range(self, query: str, step_s: float) -> Any:
        params = {
            "query": self.filled(query), "start": f"{self.window.start:.3f}", "end": f"{self.window.end:.3f}",
            "step": f"{step_s:g}",
        }  # fmt: skip
        return self.prometheus.ask("query_range", params)["result"]

    def _choose(self, variable: Mapping[str, Any]) -> None:
        name = variable["name"]
        asked = _LABEL_VALUES.fullmatch(variable["definition"])
        if asked is None:
            raise ValueError(f"variable {name}: {variable['definition']} is no label_values(…)")
        params = {"match[]": self.filled(asked[1]), "start": f"{self.window.start}", "end": f"{self.window.end}"}
        options: list[str] = [one for one in self.prometheus.ask(f"label/{asked[2]}/values", params) if one]
        if name in self.wanted:
            self.values[name] = self.chosen[name] = self.wanted[name]
        elif variable["includeAll"]:
            listed = "|".join(_SPECIAL.sub(r"\\\\\g<0>", one) for one in options)
            self.values[name], self.chosen[name] = variable.get("allValue") or f"({listed})", "All"
        else:
            self.values[name] = self.chosen[name] = options[0] if options else ""
