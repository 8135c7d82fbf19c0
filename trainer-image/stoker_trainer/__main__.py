"""`python -m stoker_trainer [--config FILE]`. Installs the stop signal first; torch is imported only after it."""

from __future__ import annotations

import os
import sys

from .stop import StopSignal


def run() -> None:
    stop = StopSignal()
    stop.install()
    from .main import main

    code = main(sys.argv[1:], os.environ, stop)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: tearing down torch takes a third of a second, and the destructors of a process group whose peer is
    # gone wait for it. Everything that must last was written and synced before.
    os._exit(code)


if __name__ == "__main__":
    run()
