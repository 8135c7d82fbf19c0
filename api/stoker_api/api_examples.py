"""An example of each operation: a request that works, and its answer. In the OpenAPI document, so in `/docs`.

The requests are written by hand in `examples.json`, in the order in which they work one after the other; a test sends
them to a real api and compares the answers with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("examples.json")


@dataclass(frozen=True, slots=True)
class Example:
    status: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of path, query and header, by name."""
    body: Any = None
    """JSON, or text as it is sent. None: there is none."""
    answer: Any = None
    """What matters of it. None: it has no body."""


def examples() -> dict[str, Example]:
    """By operation id, in the file's order."""
    return {name: Example(**one) for name, one in json.loads(FILE.read_text()).items()}
