"""The fault seam: the one place every external call passes, to be counted and, in tests, to fail or kill us.

    with seam.crossing("store.create TrainingJob"):
        ...the call...

Owns the count, the trace and the injected faults. Never decides what an error means: an `InjectedFault` is an OSError
and takes the way of any real one. Called by the store adapters and the node agent, from any thread. A crash sweep
runs once with a trace to learn the calls, then once per call with `kill before N` and `kill after N`.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

_RULE = re.compile(
    r"(?P<action>kill|fail)(?:\s+(?P<side>before|after))?\s+"
    # A number, or a name: `room.verb` and perhaps arguments. A misspelt rule must not pass for a name.
    r"(?P<call>\d+|[^\s:]*[.*][^\s:]*(?:\s+[^\s:]+)*)(?::(?P<nth>\d+|\*))?"
)


class InjectedFault(OSError):
    """A fault that the seam was set to raise."""


@dataclass(frozen=True, slots=True)
class SeamRule:
    """What to do at which call: the `number`-th of all, or the `nth` (None: every one) whose name fits `pattern`."""

    action: Literal["kill", "fail"]
    side: Literal["before", "after"]
    number: int | None = None
    pattern: str = ""
    nth: int | None = 1


class Seam:
    """Counts external calls, in order and by name. Cost: 2 µs a call with nothing injected (tools/bench/store.py)."""

    def __init__(self, rules: tuple[SeamRule, ...] = (), trace: Path | None = None) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._by_name: Counter[str] = Counter()
        self._fits: Counter[SeamRule] = Counter()
        self._total = 0
        # Unbuffered and appending: a line is in the file before the call is made, whatever kills us next.
        self._trace = None if trace is None else os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @classmethod
    def parse(cls, text: str, *, trace: Path | None = None) -> Seam:
        """A seam that follows `text`: rules separated by `;` or line ends.

        `kill before 17`, `kill after 17`, `fail 23` (the 23rd call of all; before is meant where no side is named),
        `kill after agent.spawn:2` (the second call of that name), `fail store.create*` (the first that fits),
        `fail store.update:*` (each). A pattern (shell style) must fit the whole name or its first word.
        Raises: ValueError for a rule that is none of these.
        """
        return cls(tuple(_rule(part) for part in re.split(r"[;\n]", text) if part.strip()), trace)

    def crossing(self, name: str, about: object = "") -> Crossing:
        """A context to make one external call in; `about` (an object's key, say) only goes to the trace."""
        return Crossing(self, name, about)

    @property
    def counts(self) -> dict[str, int]:
        """Calls so far, by name."""
        return dict(self._by_name)

    @property
    def total(self) -> int:
        return self._total

    def close(self) -> None:
        """Close the trace file."""
        if self._trace is not None:
            os.close(self._trace)
            self._trace = None

    def _enter(self, name: str, about: object) -> tuple[SeamRule, ...]:
        """Count the call and meet the rules that hold before it; the rest, that hold after it, come back."""
        with self._lock:
            self._total = number = self._total + 1
            self._by_name[name] += 1
            due = tuple(rule for rule in self._rules if self._is_due(rule, number, name)) if self._rules else ()
        if self._trace is not None:
            os.write(self._trace, f"{number} {name} {about}".rstrip().encode() + b"\n")
        for rule in due:
            if rule.side == "before":
                _inject(rule, number, name)
        return tuple(rule for rule in due if rule.side == "after")

    def _is_due(self, rule: SeamRule, number: int, name: str) -> bool:
        if rule.number is not None:
            return rule.number == number
        first_word = name.split(" ", 1)[0]
        if not (fnmatch.fnmatchcase(name, rule.pattern) or fnmatch.fnmatchcase(first_word, rule.pattern)):
            return False
        self._fits[rule] += 1
        return rule.nth is None or rule.nth == self._fits[rule]


class Crossing:
    """One external call under way. Made by `Seam.crossing` only."""

    __slots__ = ("_about", "_after", "_name", "_seam")

    def __init__(self, seam: Seam, name: str, about: object) -> None:
        self._seam, self._name, self._about = seam, name, about
        self._after: tuple[SeamRule, ...] = ()

    def __enter__(self) -> None:
        self._after = self._seam._enter(self._name, self._about)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rule in self._after:
            _inject(rule, self._seam.total, self._name)


def _inject(rule: SeamRule, number: int, name: str) -> None:
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise InjectedFault(errno.EIO, f"injected {rule.side} call {number}", name)


def _rule(text: str) -> SeamRule:
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text.strip()!r} is no rule; write for example 'kill before 17' or 'fail agent.spawn:2'")
    action: Literal["kill", "fail"] = "kill" if match["action"] == "kill" else "fail"
    side: Literal["before", "after"] = "after" if match["side"] == "after" else "before"
    if match["call"].isdecimal() and match["nth"] is None:
        return SeamRule(action, side, number=int(match["call"]))
    nth = None if match["nth"] == "*" else int(match["nth"] or 1)
    return SeamRule(action, side, pattern=match["call"], nth=nth)
