"""`python -m stoker_trainer [--config FILE]`. Installs the signals first; torch is imported only after it.

SIGUSR1 writes every thread's Python stack to stderr and changes nothing else: the supervisor asks so before it ends
ranks that make no progress. It works inside a collective too: no Python code has to run for it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

from .stop import StopSignal


def run() -> None:
    stop = StopSignal()
    stop.install()
    if sys.__stderr__ is not None:
        # Not chained: what comes behind is the default, which would end the process.
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True, chain=False)
    from .main import main

    code = main(sys.argv[1:], os.environ, stop)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: tearing down torch takes a third of a second, and the destructors of a process group whose peer is
    # gone wait for it. Everything that must last was written and synced before.
    os._exit(code)


if __name__ == "__main__":
    run()
