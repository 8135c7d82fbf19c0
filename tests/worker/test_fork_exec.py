"""A command starts whatever another thread does at the moment of the fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stoker_worker

# In a process of its own: a fork of pytest's, with torch in it, costs eight times as much.
PROGRAM = """
import ctypes, os, sys, threading
sys.path.insert(0, sys.argv.pop(1))
from stoker_worker.fork_exec import Command, start

libc, ended = ctypes.CDLL(None), threading.Event()
libc.dlopen.restype, libc.dlclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def load():
    while not ended.is_set():
        for name in sys.argv[1:]:
            if handle := libc.dlopen(name.encode(), os.RTLD_LAZY):
                libc.dlclose(handle)

thread = threading.Thread(target=load)
thread.start()
null = os.open(os.devnull, os.O_RDWR)
try:
    pids = [start(Command(["/bin/true"], {}, "/"), (null, null, null)) for _ in range(100)]
    print({os.waitpid(pid, 0)[1] for pid in pids})
finally:
    ended.set()
    thread.join()
"""


def test_a_command_starts_while_another_thread_loads_libraries():
    """As looking up a host's name does. A child that loaded or looked up anything itself would be aborted by ld.so."""
    maps = Path("/proc/self/maps").read_text().split()
    folder = next((Path(word).parent for word in maps if "/libc.so.6" in word), None)
    if folder is None:
        pytest.skip("not glibc")
    names = [str(path) for path in folder.glob("libnss_*.so.2")]
    command = [sys.executable, "-I", "-c", PROGRAM, str(Path(stoker_worker.__file__).parents[1]), *names]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "{0}\n"
