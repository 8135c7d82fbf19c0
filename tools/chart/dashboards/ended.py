"""Attempts that ended, drawn across every time series: failures, preemptions, gangs withdrawn. Pure data."""

from __future__ import annotations

from .model import Annotation
from .queries import counted, eq

UNDONE = 'category!="Done"'
"""Not every worker was done."""
ENDED = "stoker_attempts_ended_total"
FAILED = (eq("intent", "None"), UNDONE)
"""The end was not asked for."""


def ended(*matchers: str) -> tuple[Annotation, ...]:
    """Annotations, of the queues that match."""
    by = ("queue", "category")
    failed = counted(by, ENDED, *FAILED, *matchers)
    preempted = counted(by, ENDED, eq("intent", "Preempt"), UNDONE, *matchers)
    withdrawn = counted(("queue",), "stoker_gangs_withdrawn_total", *matchers)
    return (
        Annotation("Attempts that failed", failed, "{{queue}}: {{category}}", "red"),
        Annotation("Attempts preempted", preempted, "{{queue}}", "orange"),
        Annotation("Gangs withdrawn", withdrawn, "{{queue}}", "yellow"),
    )
