"""The table that a sweep leaves in docs/reliability.md, when `make sweep` asks for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tests.support.testbed.faulty_proxy import Fault

DOCUMENT = Path(__file__).parents[3] / "docs" / "reliability.md"


def write_table(name: str, cells: Mapping[tuple[str, Fault], str]) -> None:
    """Replace the part `name`: a row for each write, a column for each fault."""
    if "SWEEP_WRITES" not in os.environ:
        return
    writes = list(dict.fromkeys(write for write, _fault in cells))
    rows = [f"| write | {' | '.join(Fault)} |", f"|---|{'---|' * len(Fault)}"]
    rows += [f"| {write} | {' | '.join(cells.get((write, fault), '') for fault in Fault)} |" for write in writes]
    begin, end = f"<!-- written by `make sweep`: {name} -->\n", "<!-- end -->"
    text = re.sub(
        f"({re.escape(begin)}).*?({end})",
        lambda part: part[1] + "\n".join(rows) + "\n" + part[2],
        DOCUMENT.read_text(),
        flags=re.DOTALL,
    )
    DOCUMENT.write_text(text)
