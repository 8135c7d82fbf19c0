"""pytest plugin: where a test stood when its time was over. pytest-timeout prints that too, but what a worker of xdist
prints is lost with its process: the run would only say that the worker crashed.
"""

from __future__ import annotations

import faulthandler
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """All stacks to the run's own standard error, shortly before the end."""
    faulthandler.dump_traceback_later(settings.timeout * 0.95, file=item.config.stash[fault_handler_stderr_fd_key])


def pytest_timeout_cancel_timer() -> None:
    faulthandler.cancel_dump_traceback_later()
