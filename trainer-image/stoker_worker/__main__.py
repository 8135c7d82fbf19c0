"""The supervisor's first lines: signal handlers before anything else, then the rest. Never does any work itself."""

# The C module behind `signal`, which would import enum, functools and collections: 5 ms a worker.
import _signal  # type: ignore[import-not-found]
import sys

STOP_REQUESTS = []  # type: list[int]
"""Numbers of the stop signals received. The handlers only append; the supervisor's loop acts."""


def _request_stop(signum, _frame):  # type: (int, object) -> None
    STOP_REQUESTS.append(signum)


def _notice(_signum, _frame):  # type: (int, object) -> None
    """SIGCHLD needs a handler only so that the wake-up pipe is written."""


if __name__ == "__main__":
    _signal.signal(_signal.SIGTERM, _request_stop)
    _signal.signal(_signal.SIGINT, _request_stop)
    _signal.signal(_signal.SIGCHLD, _notice)
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    if __file__.endswith("stoker_worker/__main__.py") and not __package__:  # as a file: `-I` leaves its folder out
        sys.path.insert(0, __file__.rpartition("/")[0].rpartition("/")[0] or ".")

    from stoker_worker.entry import main

    main(sys.argv[1:], STOP_REQUESTS)
