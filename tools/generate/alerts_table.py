"""The chart's rules as tables for docs/alerts.md. Reads helm/stoker/files/rules; owns no rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parents[2] / "helm" / "stoker" / "files" / "rules"
_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
_VALUE = re.compile(r"\{\{ \$value[^}]*\}\}")


def alerts() -> str:
    """Every alert: its page, how bad, after how long, its summary."""
    parts = []
    for file, title in (("stoker", "Stoker itself"), ("gpus", "GPUs"), ("jobs", "Jobs")):
        rows = [f"### {title}", "", "| alert | severity | after | summary |", "|---|---|---|---|"]
        for rule in _rules(file):
            summary = _VALUE.sub("*value*", _LABEL.sub(r"*\1*", rule["annotations"]["summary"]))
            name, after = rule["alert"], "at once" if rule["for"] == "0m" else rule["for"]
            rows.append(f"| [{name}](runbooks/{name}.md) | {rule['labels']['severity']} | {after} | {summary} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def records() -> str:
    """Every series that the recording rules make, with its labels as far as the rule's last grouping shows."""
    rows = ["| series | computed from |", "|---|---|"]
    for rule in _rules("recording"):
        made_of = sorted(set(re.findall(r"\bstoker[_:][a-z_:0-9]*[a-z0-9]", rule["expr"])) - {rule["record"]})
        rows.append(f"| `{rule['record']}` | {', '.join(f'`{name}`' for name in made_of)} |")
    return "\n".join(rows) + "\n"


def dcgm() -> str:
    """The names of dcgm-exporter that there are."""
    names = [rule["record"] for rule in _rules("dcgm") if rule["record"].startswith("DCGM_")]
    return ", ".join(f"`{name}`" for name in names) + ".\n"


def _rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / f"{file}.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]
