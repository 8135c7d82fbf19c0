"""The ledger on disk: `<state>/ledger.json`, replaced as a whole; the folder's lock. Called by `main` and its keeper.

A damaged file is kept aside and a fresh ledger begun: counters then begin at 0, which everybody who reads them knows as
a reset. Nothing of it stops the meters.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.exporter.clock import Moment

from .ledger import Ledger, parse, resume

NAME = "ledger.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger("stoker.exporter")


class StateError(Exception):
    """The state folder can't be used; the text says what to do."""


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Two exporters would count the same seconds twice. Raises: StateError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _private(state / "lock")
    except OSError as error:
        raise StateError(
            f"can't write to the state folder {state}: {error.strerror}; name another by --state"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(f"another exporter keeps its ledger in {state}; give each its own by --state") from None
        yield


def boot_id() -> str:
    """Which boot CLOCK_BOOTTIME counts from."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def fresh(node: str, now: Moment, boot: str) -> Ledger:
    return Ledger(uuid.uuid4().hex, node, boot, now.at, now)


def load(state: Path, node: str, now: Moment, boot: str) -> Ledger:
    """The ledger as it goes on; a fresh one if there is none that can be read, or it is another node's."""
    path = state / NAME
    try:
        ledger = parse(path.read_bytes())
        if ledger.node != node:
            raise ValueError(f"of the node {ledger.node!r}, not {node!r}")
        return resume(ledger, now, boot)
    except FileNotFoundError:
        return fresh(node, now, boot)
    except (OSError, ValueError) as error:
        aside = path.with_name(f"{NAME}.bad-{int(now.at)}")
        log.warning("can't go on with the ledger %s: %s; kept as %s, all counters begin anew", path, error, aside.name)
        with contextlib.suppress(OSError):
            path.replace(aside)
        return fresh(node, now, boot)


def write(state: Path, data: bytes) -> None:
    """On disk when it returns, or the one before still whole. Raises: OSError."""
    new = state / f"{NAME}.new"
    with _private(new) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(state / NAME)


def _private(path: Path) -> BinaryIO:
    """Readable by its owner only: it says who works on what. Never through a link. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return os.fdopen(fd, "wb")
