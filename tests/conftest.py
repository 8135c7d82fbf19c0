"""What every run of tests has: the throw-away Kubernetes (`control_plane`), and its slowest files at the end."""

import gc
import signal

from hypothesis import settings

from tests.support.examples import examples

# A shell has what it starts in the background ignore SIGINT: the programs whose Ctrl-C is tested would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long one example takes is the machine's business, not a test's.
settings.register_profile("stoker", examples(50, deadline=None))
settings.load_profile("stoker")

pytest_plugins = [
    "tests.support.testbed.fixtures",
    "tests.support.browser",
    "tests.support.file_times",
    "tests.support.groups",
    "tests.support.nvml_fixtures",
    "tests.support.one_of_each",
    "tests.support.timeouts",
]

gc.disable()  # until all is collected: what is imported stays, and looking for garbage in it takes a sixth of the time


def pytest_collection_finish() -> None:
    """What is collected lives as long as the run: each full collection of garbage would walk it for half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()
