"""What waits, on disk: one file of receipts and one of events, each replaced as a whole. Survives restarts.

A disk that is full or a file that can't be read costs what lies on it, never the reporting of what comes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .outbox import Key, OutboxItem, event_item, receipt_item

VERSION = 1

log = logging.getLogger(__name__)


class ReportSpool:
    """Two files in `folder`; None: nothing is kept. Used by one thread at a time."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._written: dict[str, list[tuple[Key, int]]] = {}
        """What the files hold, where that is known."""
        self._failing = False

    def read_receipts(self) -> list[OutboxItem]:
        return self._read("receipts", receipt_item)

    def read_events(self) -> list[OutboxItem]:
        return self._read("events", event_item)

    def write(self, name: str, items: Sequence[OutboxItem]) -> None:
        """Makes the file (receipts, events) hold exactly these; costs nothing where it does."""
        if self._folder is None:
            return
        signs = [(item.key, item.seq) for item in items]
        if self._written.get(name) == signs:
            return
        self._written.pop(name, None)
        text = f'{{"version":{VERSION},"items":[\n' + ",\n".join(item.text for item in items) + "\n]}\n"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self._folder / f"{name}.json", text.encode())
        except OSError as error:
            if not self._failing:
                log.warning("what the api has not taken can't be kept on disk; a restart loses it: %s", error)
            self._failing = True
            return
        self._written[name] = signs
        self._failing = False

    def _read(self, name: str, item: Callable[[dict[str, Any]], OutboxItem]) -> list[OutboxItem]:
        if self._folder is None:
            return []
        path = self._folder / f"{name}.json"
        try:
            data = json.loads(path.read_bytes())
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}, not {VERSION}")
            return [item(one) for one in data["items"]]
        except FileNotFoundError:
            self._written[name] = []
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            aside = path.with_name(f"{name}.unreadable.json")
            log.warning("can't read %s, begun anew (the old one is now %s): %r", path, aside.name, error)
            try:
                path.replace(aside)
            except OSError:
                pass  # it will be replaced by the next write
            return []


def _replace(path: Path, data: bytes) -> None:
    """Raises: OSError; the old content stands then."""
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
