"""The report of checks: figures by section, as JSON and as Markdown. Pure but for `kept` and `write`."""

from __future__ import annotations

import contextlib
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
    at: str
    """When it ran, in UTC: `2026-11-22 12:00`."""
    took_s: float
    figures: dict[str, Figure] = field(default_factory=dict)
    error: str = ""

    def table(self) -> str:
        """Markdown: a heading, then one row for each figure or the error."""
        head = f"## {self.name} ({self.at}, {self.took_s:.0f} s)\n\n"
        if self.error:
            return f"{head}**Failed:**\n\n```text\n{self.error}\n```\n"
        rows = [f"| {name} | {_shown(value)} |" for name, value in self.figures.items()]
        return "\n".join([f"{head}| figure | value |\n|---|---|", *rows, ""])


@dataclass
class Report:
    hardware: str
    machine: dict[str, str]
    sections: list[Section] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """`nvidia-h200` of `NVIDIA H200`."""
        return re.sub(r"[^a-z0-9]+", "-", self.hardware.lower()).strip("-")

    def put(self, new: Section) -> None:
        """In its place if it is there, else at the end."""
        names = [section.name for section in self.sections]
        place = names.index(new.name) if new.name in names else len(names)
        self.sections[place : place + 1] = [new]

    def keep(self, folder: Path) -> None:
        """The sections of a report that is there, if it was made with the same driver and packages."""
        with contextlib.suppress(FileNotFoundError):
            before = json.loads((folder / f"{self.stem}.json").read_text())
            if before["machine"] == self.machine:
                self.sections = [Section(**section) for section in before["sections"]]

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def markdown(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        failed = [section.name for section in self.sections if section.error]
        end = f"Failed: {', '.join(failed)}." if failed else f"All {len(self.sections)} sections passed."
        head = f"# {self.hardware}\n\n`make gpu-check`; {about}. {end}\n"
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
