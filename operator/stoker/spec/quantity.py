"""Kubernetes quantities and Go-style durations as they stand in specs, and their numbers.

Source: Kubernetes `apimachinery/pkg/api/resource` (suffixes) and Go `time.ParseDuration` (units; we take d too).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from .markers import Form

_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
QUANTITY = Form(
    re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"),
    "is no quantity; write for example '2', '500m', '16Gi' or '40G'",
)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
DURATION = Form(
    re.compile(rf"({_DURATION_PART.pattern})+"), "is no duration; write for example '90s', '10m', '1h30m' or '2d'"
)
AT_LEAST_A_MINUTE = Form(
    re.compile(
        r"([6-9][0-9](\.[0-9]+)?s|[1-9][0-9]{2,6}(\.[0-9]+)?s|[1-9][0-9]{0,5}m([0-9]{1,2}s)?"
        r"|[1-9][0-9]{0,4}h([0-9]{1,2}m)?|[1-9][0-9]{0,3}d([0-9]{1,2}h)?)"
    ),
    "must be a minute at least, written for example '90s', '30m', '1h30m' or '2d'",
)
TOO_LARGE = "is larger than any machine"
NOT_ZERO = "a duration must be longer than zero"
LONGEST_S = 3650 * 86400
TOO_LONG = "a duration can't be longer than 10 years (3650d)"
NEW: Mapping[str, bool] = {"new": True}
"""The validation context of what a person writes now: too long a duration is refused, and a type of GPU that none can
be. Without it an object is one that is stored, perhaps since before: it stays readable, its durations count as
`LONGEST_S`, and such a type counts for nothing."""
_DURATION_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LARGEST = Decimal(2) ** 63 - 1


def parse_quantity(text: str) -> Decimal:
    """The quantity's value in its base unit (cores, bytes).

    Raises: ValueError if `text` is no quantity, is negative or is 2**63 - 1 or more.
    """
    match = QUANTITY.pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} {QUANTITY.says}")
    value = Decimal(match[1]) * _SUFFIX[match[2] or ""]
    if value >= _LARGEST:
        raise ValueError(f"{text!r} {TOO_LARGE}")
    return value


def observed_quantity(text: str) -> Decimal:
    """The value of a quantity written by others and accepted by the API server: exponents ("1e3") and signs too.

    What can't be read counts as 0: another's odd pod or node must not stop us.
    """
    try:
        match = QUANTITY.pattern.fullmatch(text)
        value = Decimal(match[1]) * _SUFFIX[match[2] or ""] if match else Decimal(text)
    except InvalidOperation:
        return Decimal(0)
    return max(min(value, _LARGEST), -_LARGEST) if value.is_finite() else Decimal(0)


def cpu_milli(text: str) -> int:
    """Units: thousandths of a core, rounded up as the API server does."""
    return _ceil(parse_quantity(text) * 1000)


def memory_bytes(text: str) -> int:
    """Units: bytes, rounded up."""
    return _ceil(parse_quantity(text))


def format_bytes(count: int) -> str:
    """The shortest binary quantity for people: 16Gi, 1.5Gi, 512Mi."""
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIX[suffix])
        if count >= unit:
            return f"{count / unit:.4g}{suffix}"
    return str(count)


def exact_bytes(count: int) -> str:
    """The shortest quantity that is exactly so many bytes."""
    fits = (suffix for suffix in ("Ti", "Gi", "Mi", "Ki") if count and not count % int(_SUFFIX[suffix]))
    suffix = next(fits, "")
    return f"{count // int(_SUFFIX[suffix]) if suffix else count}{suffix}"


def exact_cpu(milli: int) -> str:
    """Cores: 2, 1500m."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def format_cpu(milli: int) -> str:
    """Cores for people: 2, 0.5, 1.25."""
    return f"{milli / 1000:g}"


def parse_duration(text: str) -> float:
    """Units: seconds. Accepts 90s, 10m, 1h30m, 2d, 250ms. What is longer than `LONGEST_S` counts as that.

    Raises: ValueError if `text` is no duration.
    """
    return min(_seconds(text), LONGEST_S)


def new_duration(text: str) -> float:
    """`parse_duration` of what a person gives now. Raises: ValueError also for what is longer than `LONGEST_S`."""
    seconds = _seconds(text)
    if seconds > LONGEST_S:
        raise ValueError(f"{text!r}: {TOO_LONG}")
    return seconds


def format_duration(seconds: float) -> str:
    """A duration for people with at most two units: 1h30m, 2m5s, 12s, 0.4s."""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    left, parts = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


@functools.lru_cache(1024)
def _seconds(text: str) -> float:
    if not DURATION.fits(text):
        raise ValueError(f"{text!r} {DURATION.says}")
    return sum(float(number) * _DURATION_UNIT_S[unit] for number, unit in _DURATION_PART.findall(text))


def _ceil(value: Decimal) -> int:
    return int(value.to_integral_value(rounding="ROUND_CEILING"))
