"""One file of a job's on its way here: streamed, and resumed by ranges where the connection breaks.

Owns the tries. What had come before a break is kept only if the file is still the same one (`If-Range`). Called by
`calls.py`, `client.py` and `stoker cp`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .errors import ApiError
from .wire import TRIES, ConnectionLost, Wire, pause_s


def fetch(wire: Wire, path: str, to: BinaryIO) -> None:
    """`to` stands at its beginning and can be truncated. Raises: ApiError, Unreachable."""
    etag, had, tries = "", 0, 0
    while True:
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if had and etag:
            headers |= {"Range": f"bytes={had}-", "If-Range": etag}
        before = had
        try:
            with wire.stream(path, params=None, headers=headers) as answer:
                if answer.status != 206:
                    had = before = 0
                    to.seek(0)
                    to.truncate()
                etag = answer.headers.get("etag", "")
                for piece in answer.chunks():
                    to.write(piece)
                    had += len(piece)
            return
        except ApiError as error:
            if error.status == 416:  # it became shorter meanwhile: from the start
                etag, had = "", 0
            else:
                raise
            lost = ConnectionLost("the file changed while it was read")
        except ConnectionLost as error:
            lost = error
        tries = 1 if had > before else tries + 1
        if tries >= TRIES:
            raise wire.unreachable(lost)
        time.sleep(pause_s(tries, lost.retry_after_s))


def fetch_into(to: Path, write: Callable[[BinaryIO], None]) -> int:
    """How many bytes `write` wrote, which are at `to` now: whole, or what was there before. Raises: OSError."""
    fd, aside = tempfile.mkstemp(prefix=".stoker-cp-", dir=to.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            write(file)
            size = file.tell()
        umask = os.umask(0)
        os.umask(umask)
        Path(aside).chmod(0o666 & ~umask)
        Path(aside).replace(to)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(aside).unlink()
        raise
    return size
