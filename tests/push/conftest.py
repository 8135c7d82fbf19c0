"""Pushes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stoker.push.sender import Push, PushOptions


@pytest.fixture
def pushes() -> Iterator[Callable[[PushOptions], Push]]:
    """Starts pushes that end with the test."""
    made: list[Push] = []

    def start(wanted: PushOptions) -> Push:
        made.append(Push(wanted))
        made[-1].start()
        return made[-1]

    yield start
    for push in made:
        push.stop(timeout_s=0)
