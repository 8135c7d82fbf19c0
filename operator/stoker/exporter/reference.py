"""docs/metrics.md's tables of the exporter's metrics, from the catalogue. Called by tools/generate/docs.py."""

from __future__ import annotations

from .catalogue import TABLES

_TITLES = {
    "stoker_gpu_": "GPUs",
    "stoker_mig_": "MIG devices",
    "stoker_job_gpu_": "Jobs' GPU time",
    "stoker_exporter_": "The exporter itself",
}


def reference() -> str:
    """One table per prefix."""
    parts = []
    for prefix, (families, shared) in TABLES.items():
        parts += [f"### {_TITLES[prefix]}: `{prefix}…`", ""]
        parts += [f"Labels of all: {_code(shared)}; more in the table.", ""]
        parts += ["| metric | type | more labels | switch | means |", "|---|---|---|---|---|"]
        for family in families:
            switch = "" if family.collector == "core" else f"`{family.collector}`"
            name, means = f"`{prefix}{family.name}`", family.help.replace("|", "\\|")
            parts.append(f"| {name} | {family.type} | {_code(family.labels)} | {switch} | {means} |")
        parts.append("")
    return "\n".join(parts)


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
