"""Owns the right to publish in a checkpoint folder: the newest attempt has it, a zombie of an older one does not.
Called by checkpoints and the export of weights.

Each attempt claims the folder at its start by a file that names it; a publisher looks, under the folder's lock,
whether a higher claim exists. Claiming takes the same lock, so between a look and the rename no newer attempt can
have begun to read.
Limits: flock must work on the file system (it does locally, on NFSv4 and CephFS). A holder frozen inside the lock is
waited for `LOCK_WAIT_S`, then passed by: what it may still publish afterwards is a complete checkpoint of an older
attempt, never a torn one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import Superseded, TrainerError

LOCK_WAIT_S = 10.0
_CLAIMS = "claims"


class Fence:
    """One attempt's claim on `folder`."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder, self.attempt = folder, attempt

    @staticmethod
    def claim(folder: Path, attempt: int | None, lock_wait_s: float = LOCK_WAIT_S) -> Fence:
        """Takes the folder for `attempt`; None (a run by hand) is one more than the highest so far.

        Raises: Superseded where a newer attempt was here; TrainerError where the folder can't be written.
        """
        try:
            (folder / _CLAIMS).mkdir(parents=True, exist_ok=True)
            with _locked(folder, lock_wait_s):
                highest = _highest_claim(folder)
                fence = Fence(folder, (highest or 0) + 1 if attempt is None else attempt)
                if highest is not None and highest > fence.attempt:
                    raise Superseded(fence._refusal(highest))
                (folder / _CLAIMS / f"{fence.attempt:08d}").touch()
        except OSError as error:
            raise TrainerError(f"STOKER_CHECKPOINT_DIR: {folder} can't be written: {error}") from None
        return fence

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """The right to rename and prune, until the end of the block.

        Raises: Superseded where a newer attempt has claimed the folder.
        """
        with _locked(self._folder, LOCK_WAIT_S):
            highest = _highest_claim(self._folder)
            if highest is None or highest > self.attempt:
                raise Superseded(self._refusal(highest))
            yield

    def _refusal(self, highest: int | None) -> str:
        what = "the claims are gone" if highest is None else f"attempt {highest} has claimed it"
        return f"attempt {self.attempt} may not publish in {self._folder}: {what}"


def _highest_claim(folder: Path) -> int | None:
    return max((int(p.name) for p in (folder / _CLAIMS).iterdir() if p.name.isdigit()), default=None)


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[None]:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        give_up = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    break
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
