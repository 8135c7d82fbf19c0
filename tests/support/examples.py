"""How many examples a property test draws: `count` in `make test`, ten times as many in `make sweep`, a tenth on the
newer Python (`$STOKER_EXAMPLES`).
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

SHARE = float(os.environ.get("STOKER_EXAMPLES", "1"))


def examples(count: int, parent: settings | None = None, **others: Any) -> settings:
    """`others`: further settings of Hypothesis."""
    return settings(parent, max_examples=max(1, round(count * SHARE)), **others)
