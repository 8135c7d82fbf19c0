"""A command starts whatever another thread does at the moment of the fork."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from stoker_worker.fork_exec import Command, start


def test_a_command_starts_while_another_thread_loads_libraries():
    """As looking up a host's name does. A child that loaded or looked up anything itself would be aborted by ld.so."""
    maps = Path("/proc/self/maps").read_text().split()
    folder = next((Path(word).parent for word in maps if "/libc.so.6" in word), None)
    if folder is None:
        pytest.skip("not glibc")
    names = [str(path).encode() for path in folder.glob("libnss_*.so.2")]
    libc, ended = ctypes.CDLL(None), threading.Event()
    libc.dlopen.restype, libc.dlclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def load() -> None:
        while not ended.is_set():
            for name in names:
                if handle := libc.dlopen(name, os.RTLD_LAZY):
                    libc.dlclose(handle)

    thread = threading.Thread(target=load)
    thread.start()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        pids = [start(Command(["/bin/true"], {}, "/"), (null, null, null)) for _ in range(100)]
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 100
    finally:
        ended.set()
        thread.join()
        os.close(null)
