"""What in this process grows with each round of some work: every dict, set, list and deque is measured.

For tests that a job leaves nothing behind in memory once it is deleted, wherever that would be kept.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

_CONTAINERS = (dict, set, list, deque)
_BOUNDED = (weakref.ref, asyncio.TimerHandle)
"""sqlite3 clears its list of cursors at 200, a loop that of time-outs when most of over 100 are cancelled."""


async def grown(work: Callable[[], Awaitable[None]], each: int, *, rounds: int = 3) -> set[str]:
    """Do `work`, which handles `each` things, `rounds` times. Returns: the names of containers, as Owner.attribute,
    that gained nine tenths of `each` or more in every round but the first."""
    gc.unfreeze()  # the modules' own containers too
    await work()
    sizes, growing = _sizes(), None
    for _ in range(rounds - 1):
        await work()
        now = _sizes()
        found = {at for at, (_, size) in now.items() if at in sizes and size - sizes[at][1] >= 0.9 * each}
        growing = found if growing is None else growing & found
        sizes = now
    return {_name(sizes[at][0]) for at in growing or ()}


def _sizes() -> dict[int, tuple[Any, int]]:
    """By id: each container, kept so that no other takes its id, and how much is in it."""
    gc.collect()
    # type(), for there are objects (torch's deprecated ones) that warn when they are asked for their class.
    found = {id(one): (one, len(one)) for one in gc.get_objects() if issubclass(type(one), _CONTAINERS) and one}
    return {at: (one, size) for at, (one, size) in found.items() if not isinstance(next(iter(one), None), _BOUNDED)}


def _name(thing: Any) -> str:
    """By the object's attribute or the module's variable that holds it; else by its kind."""
    for holder in gc.get_referrers(thing):
        owners = [holder, *(gc.get_referrers(holder) if isinstance(holder, dict) else ())]
        for owner in owners:
            named = issubclass(type(owner), ModuleType) or type(owner).__module__ != "builtins"
            for name in (*getattr(type(owner), "__slots__", ()), *getattr(owner, "__dict__", ())) if named else ():
                if getattr(owner, name, None) is thing:
                    return f"{getattr(owner, '__name__', type(owner).__qualname__)}.{name}"
    return f"a {type(thing).__name__} of {len(thing)}"
