from __future__ import annotations

import gc
from threading import Event, Thread

import pytest

from stoker.sched.collector import CollectorWaits


def test_the_collector_waits_until_the_work_has_ended_or_failed() -> None:
    was_on = list[bool]()
    with pytest.raises(ZeroDivisionError), CollectorWaits():
        was_on.append(1 // int(gc.isenabled()) > 0)
    assert gc.isenabled() and not was_on


def test_of_two_threads_the_last_leaves_it_on() -> None:
    is_inside, may_go = Event(), Event()

    def other() -> None:
        with CollectorWaits():
            is_inside.set()
            assert may_go.wait(10)

    thread = Thread(target=other)
    with CollectorWaits():
        thread.start()
        assert is_inside.wait(10)
    may_go.set()
    thread.join()
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with CollectorWaits():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
