"""`python -m stoker.fetch`: fetches what STOKER_FETCH says, one after the other; a line of JSON says where it is.

Ends with 0 and {"places": {name: folder}}, or with 1 and {"error": why}; the error goes into STOKER_TERMINATION_LOG
too, as plain text. Ends at once when its standard input is a pipe that is closed: who started it is gone.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from .errors import says

SILENT_S = 120.0
"""No byte for so long is given up, whatever the store's client thinks."""


def main() -> None:
    from .order import read_order

    try:
        order = read_order(os.environ["STOKER_FETCH"])
    except (KeyError, TypeError, ValueError) as error:
        _fail(f"STOKER_FETCH: {error!r}")
    watch = _Watch(order.timeout_s, order.items[0].name)
    threading.Thread(target=watch.run, daemon=True).start()
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        from .cache import Cache
        from .fetching import Unavailable, fetch

        cache = Cache(Path(order.root), order.project, order.limit_bytes, watch.alive, order.free_share)
        places = {}
        for item in order.items:
            watch.item = item.name
            places[item.name] = str(fetch(item, cache))
    except Unavailable as error:
        _fail(str(error))
    except Exception as error:  # noqa: BLE001 (the edge: the pod's status is all that is seen of us)
        _fail(f"data {watch.item}: {says(error)}")
    _leave(0, {"places": places})


class _Watch:
    """Ends the process when all takes too long, or nothing comes any more."""

    def __init__(self, timeout_s: float, item: str) -> None:
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._moved_at = time.monotonic()
        self.item = item

    def alive(self) -> None:
        self._moved_at = time.monotonic()

    def run(self) -> None:
        while True:
            time.sleep(1)
            now = time.monotonic()
            if now > self._until:
                _fail(f"data {self.item}: it was not there after {self._timeout_s:g} s")
            if now > self._moved_at + SILENT_S:
                _fail(f"data {self.item}: nothing came for {SILENT_S:g} s")


def _end_with_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def _fail(why: str) -> NoReturn:
    log = os.environ.get("STOKER_TERMINATION_LOG")
    if log:
        try:
            Path(log).write_text(why)
        except OSError as error:
            sys.stderr.write(f"stoker.fetch: {log}: {error}\n")
    _leave(1, {"error": why})


def _leave(code: int, answer: dict[str, object]) -> NoReturn:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(code)  # threads of a store's client may hang


if __name__ == "__main__":
    main()
