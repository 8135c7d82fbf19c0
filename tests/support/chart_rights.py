"""What operator and api may do, as the chart's templates say it: for tests that run them with just that, without helm.

The rules stand in the templates as plain YAML. Held against what helm renders by tests/chart.
"""

from __future__ import annotations

from typing import Any, Literal

import yaml

from tools.chart.rendering import CHART

Whose = Literal["operator", "leader", "burn-ins", "burn-in-jobs", "api"]
FILES: dict[Whose, str] = {
    "operator": "operator/rbac.yaml",
    "leader": "operator/rbac-leader.yaml",
    "burn-ins": "operator/rbac-burn-ins.yaml",
    "burn-in-jobs": "operator/rbac-burn-in-jobs.yaml",
    "api": "api/rbac.yaml",
}
IN_ITS_NAMESPACE: tuple[Whose, ...] = ("leader", "burn-in-jobs")
_NAME = '{{ include "stoker.fullname" . }}'


def rules(whose: Whose) -> list[dict[str, Any]]:
    """Of its role, in an installation called `stoker`."""
    text = (CHART / "templates" / FILES[whose]).read_text().replace(_NAME, "stoker")
    found: list[dict[str, Any]] = yaml.safe_load(text.partition("\nrules:\n")[2].partition("\n---\n")[0])
    return found
