"""The report of a check: figures by section, as JSON and as Markdown. Pure but for `write`."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

Figure = float | int | str | None
"""None: the hardware or the driver has no such thing."""


@dataclass
class Section:
    """One section's figures by name (units are in the names), or its error."""

    name: str
    took_s: float
    figures: dict[str, Figure] = field(default_factory=dict)
    error: str = ""

    def table(self) -> str:
        """Markdown: a heading, then one row for each figure or the error."""
        head = f"## {self.name} ({self.took_s:.0f} s)\n\n"
        if self.error:
            return f"{head}**Failed:**\n\n```text\n{self.error}\n```\n"
        rows = [f"| {name} | {_shown(value)} |" for name, value in self.figures.items()]
        return "\n".join([f"{head}| figure | value |\n|---|---|", *rows, ""])


@dataclass
class Report:
    hardware: str
    at: datetime.datetime
    machine: dict[str, str]
    sections: list[Section] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """`nvidia-h200` of `NVIDIA H200`."""
        return re.sub(r"[^a-z0-9]+", "-", self.hardware.lower()).strip("-")

    def json(self) -> str:
        return json.dumps({**asdict(self), "at": self.at.isoformat(timespec="seconds")}, indent=1) + "\n"

    def markdown(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        failed = [section.name for section in self.sections if section.error]
        end = f"Failed: {', '.join(failed)}." if failed else f"All {len(self.sections)} sections passed."
        head = f"# {self.hardware}\n\n`make gpu-check`, {self.at:%Y-%m-%d %H:%M} UTC; {about}. {end}\n"
        return "\n".join([head, *(section.table() for section in self.sections)])

    def write(self, folder: Path) -> None:
        """`<folder>/<hardware>.json` and `.md`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.stem}.json").write_text(self.json())
        (folder / f"{self.stem}.md").write_text(self.markdown())


def _shown(value: Figure) -> str:
    if value is None:
        return "not there"
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
