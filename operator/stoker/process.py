"""What Stoker's asyncio processes have in common: log lines, signals, the garbage collector. Called by their mains."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
# Full collections over a cluster's objects pause the loop for tenths of a second; they are trees, freed by counting.
# One over 20,000 young objects takes 6 to 12 ms: many small ones instead, of 2,000 at most.
_GC_THRESHOLDS = (500, 3, 300_000)
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextLines(logging.Formatter):
    """What a tenant has put into a message moves no terminal and begins no line: others of one message are indented."""

    def format(self, record: logging.LogRecord) -> str:
        return _plain(super().format(record)).replace("\n", "\n  ")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps({name: _plain(text) for name, text in line.items()}, ensure_ascii=False)


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)


def set_up_logging(level: str, form: LogFormat = "text") -> None:
    """All of this process's logging to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def stop_on_signals(parts: list[asyncio.Task[None]]) -> None:
    """SIGINT and SIGTERM cancel them, the last first; parts that are added later too."""

    def stop() -> None:
        # Once: a second cancel would cut off the graceful end that the first one began.
        while parts:
            parts.pop().cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def keep_loaded() -> None:
    """What was loaded so far lives as long as the process: the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
