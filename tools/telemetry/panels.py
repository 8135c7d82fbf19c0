"""Panel → what it has to show: the one table of all dashboards. Pure, but for nothing.

A panel's figures are by target (refId) and by series: the legend's text, or of a table the values of its labels.
`WHY_NOT` names the panels for which there is no figure beside the product's own, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .figures import Figure
from .truth import Truth

Figures = Mapping[str, Mapping[str, Figure]]
"""refId → legend → figure."""
Panel = Callable[[Truth], Figures]
PANELS: dict[tuple[str, str], Panel] = {}
EMPTY: dict[tuple[str, str], str] = {}
"""Panels that are empty in this run, and why."""


def panel(dashboard: str, *titles: str) -> Callable[[Panel], Panel]:
    def known(made: Panel) -> Panel:
        for title in titles:
            PANELS[dashboard, title] = made
        return made

    return known


def one(figure: Figure) -> Figures:
    """A panel of one series without a legend."""
    return {"A": {"": figure}}


def all_panels() -> dict[tuple[str, str], Panel]:
    from . import panels_cluster, panels_gpu, panels_health, panels_job, panels_queue  # noqa: F401 (they fill the table)

    return PANELS
