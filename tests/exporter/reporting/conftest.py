import contextlib

import pytest

from stoker.exporter.reporting.reporter import UsageReporter
from stoker.push.link import Link

from .recording_api import RecordingApi


@pytest.fixture
def api():
    made = RecordingApi()
    yield made
    made.close()


@pytest.fixture
def reporter(api, tmp_path):
    """`reporter(...)` starts one; all are stopped in the end."""
    with contextlib.ExitStack() as ends:

        def start(url=api.url, state=tmp_path, every_s=0.05, timeout_s=5.0, token=None):
            link = Link(url, token, timeout_s=timeout_s)
            made = UsageReporter(link, "n0", state, every_s=every_s, gather_s=0.01)
            made.start()
            ends.callback(link.close)
            ends.callback(made.stop)
            return made

        yield start
