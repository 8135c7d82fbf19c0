"""How commands print: tables, facts, JSON, YAML; and how a field of an answer becomes a cell.

Commands that look or act read fields by their names in JSON, from the answer as it came: to validate it takes longer
than all the rest. tests/cli/test_fields.py holds every name against the REST bodies. Fetches nothing. On a terminal
tables fit its width and carry colour (NO_COLOR is respected); in a pipe they are plain, complete and never cut.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from stoker.client.errors import unreadable
from stoker.spec.phase import Phase
from stoker.spec.quantity import format_duration

from .layout import GAP, cut_to, fitted, width_of

if TYPE_CHECKING:
    from .watching import Changes

_COLOURS: dict[str, str] = {
    Phase.RUNNING: "cyan",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
    Phase.CANCELLED: "magenta",
    Phase.QUEUED: "yellow",
    Phase.SUSPENDED: "yellow",
}
DASH = "-"


def values(body: Any, fields: str) -> list[Any]:
    """The fields of `body` with these names, parts after dots; of a list those of each item. None: absent."""
    found = []
    for path in fields.split():
        at = body
        for name in path.split("."):
            at = [item.get(name) for item in at] if isinstance(at, list) else (at or {}).get(name)
        found.append(at)
    return found


def _as_is(value: Any) -> str:
    return DASH if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a fact. `text` makes the cell of the values of `fields`; where there are none, of the whole body.
    `cut`: may be shortened on a narrow terminal. `drops`: may be left out there, the highest first; 0: the last to go.
    """

    title: str
    fields: str = ""
    text: Callable[..., str] = _as_is
    right: bool = False
    cut: bool = False
    drops: int = 0

    def read(self, body: Any) -> str:
        """Raises: ApiError where the answer is of another form than ours."""
        try:
            return self.text(*values(body, self.fields)) if self.fields else self.text(body)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise unreadable("the server", self.fields) from None


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, width: int | None, colour: bool) -> str:
    """The table as text, each line ending in a newline. `width` None: as wide as it needs, nothing cut."""
    cells = [[column.title for column in columns], *([harmless(text) for text in row] for row in rows)]
    widths = [max(width_of(row[at]) for row in cells) for at in range(len(columns))]
    sizes = dict(enumerate(widths)) if width is None else fitted(columns, widths, width)
    lines = []
    for number, row in enumerate(cells):
        parts = []
        for at, size in sizes.items():
            short = cut_to(row[at], size)
            blanks = " " * (size - width_of(short))
            padded = blanks + short if columns[at].right else short + blanks
            look = {"bold": True} if number == 0 else {"fg": _COLOURS.get(row[at])}
            parts.append(click.style(padded, **look) if colour and any(look.values()) else padded)
        lines.append(GAP.join(parts).rstrip() + "\n")
    return "".join(lines)


def echo_items(columns: Sequence[Column], items: Iterable[Any], *, heading: bool = True) -> None:
    """A row for each of `items`."""
    echo_rows(columns, ([column.read(item) for column in columns] for item in items), heading=heading)


def echo_objects(
    columns: Sequence[Column], items: Sequence[Any], form: str, *, one: bool = False, changes: Changes | None = None
) -> None:
    """As `-o` says. `one`: there is one, and JSON and YAML have no list around it. `changes`: only what is new."""
    if changes is not None and not (items := changes.of(items)):
        return
    if form in ("table", "wide"):
        echo_items(columns, items, heading=changes is None or changes.first)
    elif form == "name":
        click.echo("".join(f"{columns[0].read(item)}\n" for item in items), nl=False)
    else:
        echo_data(items[0] if one else items, form)


def echo_rows(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, heading: bool = True) -> None:
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    text = table(columns, rows, width=width, colour=terminal and not os.environ.get("NO_COLOR"))
    click.echo(text if heading else text.partition("\n")[2], nl=False)


def facts(named: Iterable[tuple[str, str]]) -> str:
    """One a line, but for those that are empty."""
    known = [(name, text) for name, text in named if text]
    size = max((len(name) for name, _ in known), default=0)
    return "".join(f"{name:<{size}}  {harmless(text)}\n" for name, text in known)


def echo_data(data: Any, form: str) -> None:
    """An answer as JSON or YAML."""
    if form == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def age_text(since: str | None) -> str:
    return DASH if since is None else format_duration(max(0, round(age_s(since))))


def age_s(since: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()


def one_line(text: str) -> str:
    """`text` with its line breaks and runs of blanks made single blanks, and nothing in it that moves a terminal."""
    return harmless(" ".join(text.split()))


def harmless(text: str) -> str:
    """Names and messages are anybody's text: a `?` for what no terminal shows but some obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# C0 but tab, line feed and carriage return; DEL; C1; what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def for_terminal(text: str) -> str:
    """A log is anybody's text: without colours, and with a `?` for what a terminal would obey (titles, clipboard)."""
    return _CONTROL.sub("?", _ANSI_COLOUR.sub("", text))
