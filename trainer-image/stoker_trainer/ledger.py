"""Owns the monotone record: what every attempt of the job really spent, lost work included. Called by the report.

The trajectory's tally rolls back with the checkpoint; this does not. Their difference is what was lost. One small file
per attempt in `<checkpoints>/ledger`, replaced about once a second: a kill loses at most the last second of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .files import replace_json

_SOURCE = "source.json"


@dataclass(slots=True)
class Spent:
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.steps + other.steps, self.samples + other.samples, self.seconds + other.seconds)


class Ledger:
    """This attempt's page and the sum of all others. Without a folder only this process is counted."""

    def __init__(self, folder: Path | None, attempt: int) -> None:
        self.mine, self._before, self._source = Spent(), Spent(), Spent()
        self._path = folder / "ledger" / f"attempt-{attempt:08d}.json" if folder is not None else None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._source = _read(self._path.with_name(_SOURCE))
            for page in self._path.parent.glob("attempt-*.json"):
                spent = _read(page)
                if page == self._path:
                    self.mine = spent  # the same attempt, started again
                else:
                    self._before = self._before.plus(spent)

    def take_over(self, spent: Spent) -> None:
        """Counts what another job has spent until its checkpoint that this one goes on from.

        Raises: OSError.
        """
        self._source = spent
        if self._path is not None:
            replace_json(self._path.with_name(_SOURCE), asdict(spent), sync=False)

    def total(self) -> Spent:
        return self._source.plus(self._before).plus(self.mine)

    def write(self) -> None:
        """Raises: OSError."""
        if self._path is not None:
            replace_json(self._path, asdict(self.mine), sync=False)


def _read(page: Path) -> Spent:
    try:
        return Spent(**json.loads(page.read_bytes()))
    except (OSError, ValueError, TypeError):
        return Spent()  # written by another version: better too little lost work shown than none trained
