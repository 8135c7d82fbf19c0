"""`stoker up --background`: the server as a process of its own, which outlives the terminal.

Owns the fork, the log file and the wait until the server is ready. Called before anything with threads is imported.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from stoker.client.errors import BadInput

LOG_FILE = "up.log"
_READY = b"\n  try "
"""In the last line that a server prints when it is ready."""
_PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.05
_LONGEST_LOG = 16 << 20


def detach(folder: Path) -> int | None:
    """None: this is the server's process, its output goes to the log. Else the exit code of the command, which has
    waited until the server was ready or had ended.

    Raises: BadInput where the log can't be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(folder / LOG_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        if os.fstat(log).st_size > _LONGEST_LOG:
            os.ftruncate(log, 0)
    except OSError as error:
        raise BadInput(f"can't write {folder / LOG_FILE}: {error.strerror}") from None
    begun = os.fstat(log).st_size
    child = os.fork()
    if child == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(log)
        return None
    return _ready(child, log, begun, folder / LOG_FILE)


def _ready(child: int, log: int, begun: int, path: Path) -> int:
    """The exit code once the server is ready, or has ended."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        output = os.pread(log, 1 << 20, begun)
        if ended:
            click.echo(output.decode(errors="replace"), err=True, nl=False)
            return os.waitstatus_to_exitcode(status) or 1
        if _READY in output and output.endswith(b"\n"):
            click.echo(output.decode(errors="replace"), err=True, nl=False)
            click.echo(f"  stop   kill {child}   (its log: {path})", err=True)
            return 0
        if time.monotonic() > until:
            raise BadInput(f"the server, process {child}, is not ready after {_PATIENCE_S:.0f} s; {path} may say why")
        time.sleep(_LOOK_EVERY_S)
