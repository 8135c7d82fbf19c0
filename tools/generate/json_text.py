"""Checked-in JSON: what fits into a line stands on one, so that files are short and a change is a line of a diff."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 200


def text(value: Any, indent: str = "") -> str:
    """In the order of its keys, without a newline at the end."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    deeper = f"{indent} "
    if isinstance(value, list):
        rows, ends = [deeper + text(one, deeper) for one in value], "[]"
    else:
        rows, ends = [f"{deeper}{json.dumps(key)}: {text(one, deeper)}" for key, one in value.items()], "{}"
    return f"{ends[0]}\n" + ",\n".join(rows) + f"\n{indent}{ends[1]}"
