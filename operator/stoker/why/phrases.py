"""Numbers and names as people read them, and a Reason's numbers in people's units. Called by the explaining modules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict

from stoker.sched.queue_state import Account
from stoker.spec.quantity import format_bytes, format_cpu

RESOURCES = ("gpus", "cpu", "memory")
"""As they stand in amounts and totals."""


OF_TYPE = "gpus."
"""Before a type of GPUs: 'gpus.h100' is a resource too."""


def resources(account: Account) -> tuple[str, ...]:
    """What the account's amounts are of, as far as it has them."""
    gpu_type = account.name.partition("/")[2]
    return (OF_TYPE + gpu_type,) if gpu_type else RESOURCES


class Numbers(TypedDict):
    resource: str
    short: float
    of: float


def numbers(resource: str, wanted: int, available: int) -> Numbers:
    """A Reason's fields. Units: GPUs, cores (from thousandths), bytes."""
    return {"resource": resource, "short": in_units(resource, wanted - available), "of": in_units(resource, wanted)}


def in_units(resource: str, count: int) -> float:
    return count / 1000 if resource == "cpu" else float(count)


def amount(resource: str, count: int) -> str:
    if resource == "gpus":
        return counted(count, "GPU")
    if resource.startswith(OF_TYPE):
        return counted(count, f"{resource.removeprefix(OF_TYPE)} GPU")
    if resource == "cpu":
        return f"{format_cpu(count)} core" if count == 1000 else f"{format_cpu(count)} cores"
    return format_bytes(count) if resource == "memory" else f"{count} {resource}"


def part(resource: str, some: int, whole: int) -> str:
    """'2 of 4 GPUs', '1.5 of 8 cores', '2Gi of 4Gi memory'."""
    if resource == "memory":
        return f"{format_bytes(some)} of {format_bytes(whole)} memory"
    return f"{format_cpu(some) if resource == 'cpu' else some} of {amount(resource, whole)}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[str], most: int) -> str:
    """'x', 'x and y', 'x, y and 7 more'."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S} UTC"


def moment(at: datetime) -> str:
    """Of what may be days away."""
    return f"{at.astimezone(UTC):%Y-%m-%d} {clock(at)}"
